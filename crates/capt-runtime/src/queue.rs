//! The work queue of a controller: which objects must be looked at, and when.
//!
//! A key is at most once in the queue, however many events name it, and is never handed out while it is being worked
//! on: an event that arrives meanwhile makes it run once more afterwards. So two passes over one object never overlap
//! and no event is lost. Metrics carry the names and meanings of client-go's work queue.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use crate::{
    key::Key,
    metrics::{Metrics, QueueMetrics},
};

/// Handle to a queue. Any number of producers, one consumer.
#[derive(Clone, Debug)]
pub struct Queue {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
    metrics: QueueMetrics,
}

#[derive(Debug, Default)]
struct State {
    /// Keys to hand out, in order.
    ready: VecDeque<Key>,
    /// Keys that must run (again), and since when. A key that is running waits here, outside `ready`.
    wanted: HashMap<Key, Instant>,
    running: HashMap<Key, Instant>,
    /// The one pending timer of a key, and the same timers in order of time.
    timers: HashMap<Key, Instant>,
    agenda: BTreeSet<(Instant, Key)>,
    closed: bool,
}

impl Queue {
    /// A queue whose metrics carry `name`.
    pub fn new(name: &str, metrics: &Metrics) -> Self {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Notify::new(),
            metrics: metrics.queue(name),
        });
        let observed = Arc::downgrade(&shared);
        metrics.before_scrape(move || {
            if let Some(shared) = observed.upgrade() {
                shared.measure_running();
            }
        });
        Self { shared }
    }

    /// Asks for a pass over `key` as soon as a worker is free.
    pub fn add(&self, key: Key) {
        let mut state = self.shared.lock();
        state.want(key, Instant::now(), &self.shared.metrics);
        drop(state);
        self.shared.changed.notify_one();
    }

    /// Asks for a pass after `delay`. Of several pending requests for a key the earliest counts. Starting a pass
    /// forgets the key's timer, because the pass itself says when to look again.
    pub fn add_after(&self, key: Key, delay: Duration) {
        let mut state = self.shared.lock();
        state.schedule(key, Instant::now() + delay);
        drop(state);
        self.shared.changed.notify_one();
    }

    /// Like [`Queue::add_after`], counted as a retry.
    pub fn retry_after(&self, key: Key, delay: Duration) {
        self.shared.metrics.retries.inc();
        self.add_after(key, delay);
    }

    /// Waits for the next key and marks it as running; `None` once the queue is closed. The caller must report the
    /// end of the pass with [`Queue::done`]. Cancelling the wait loses nothing.
    pub async fn next(&self) -> Option<Key> {
        loop {
            let alarm = {
                let mut state = self.shared.lock();
                let now = Instant::now();
                state.promote_due(now, &self.shared.metrics);
                if state.closed {
                    return None;
                }
                if let Some(key) = state.start(now, &self.shared.metrics) {
                    return Some(key);
                }
                state.next_alarm()
            };
            self.changed_or(alarm).await;
        }
    }

    /// Moves keys whose time has come into the queue, for ever. The consumer runs this while it cannot take more
    /// work, so that depth and waiting time stay honest under load.
    pub async fn promote_due(&self) {
        loop {
            let alarm = {
                let mut state = self.shared.lock();
                state.promote_due(Instant::now(), &self.shared.metrics);
                state.next_alarm()
            };
            self.changed_or(alarm).await;
        }
    }

    async fn changed_or(&self, alarm: Option<Instant>) {
        match alarm {
            Some(at) => {
                // Either way the caller looks again.
                let _ = tokio::time::timeout_at(at, self.shared.changed.notified()).await;
            }
            None => self.shared.changed.notified().await,
        }
    }

    /// Ends a pass. A key that was asked for meanwhile is handed out again.
    pub fn done(&self, key: &Key) {
        let mut state = self.shared.lock();
        state.finish(key, Instant::now(), &self.shared.metrics);
        drop(state);
        self.shared.changed.notify_one();
    }

    /// No key is handed out or accepted any more. Running passes may still be reported as done.
    pub fn close(&self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_one();
    }

    /// Keys being worked on, with the time each has taken so far.
    pub fn running(&self) -> Vec<(Key, Duration)> {
        let now = Instant::now();
        let state = self.shared.lock();
        state
            .running
            .iter()
            .map(|(key, since)| (key.clone(), now.duration_since(*since)))
            .collect()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while the lock is held; if it did, the sets would still be consistent enough to go on.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn measure_running(&self) {
        let now = Instant::now();
        let state = self.lock();
        let ages = state
            .running
            .values()
            .map(|since| now.duration_since(*since).as_secs_f64());
        let (sum, longest) = ages.fold((0.0, 0.0_f64), |(sum, longest), age| (sum + age, longest.max(age)));
        self.metrics.unfinished.set(sum);
        self.metrics.longest_running.set(longest);
    }
}

impl State {
    fn want(&mut self, key: Key, now: Instant, metrics: &QueueMetrics) {
        if self.closed || self.wanted.contains_key(&key) {
            return;
        }
        metrics.adds.inc();
        self.wanted.insert(key.clone(), now);
        if !self.running.contains_key(&key) {
            self.ready.push_back(key);
            self.publish_depth(metrics);
        }
    }

    fn schedule(&mut self, key: Key, at: Instant) {
        if self.closed {
            return;
        }
        match self.timers.get(&key).copied() {
            Some(earlier) if earlier <= at => return,
            Some(later) => {
                self.agenda.remove(&(later, key.clone()));
            }
            None => {}
        }
        self.timers.insert(key.clone(), at);
        self.agenda.insert((at, key));
    }

    fn promote_due(&mut self, now: Instant, metrics: &QueueMetrics) {
        while self.agenda.first().is_some_and(|(at, _)| *at <= now) {
            let Some((at, key)) = self.agenda.pop_first() else {
                return;
            };
            self.timers.remove(&key);
            // Its wait began when it was due, not when somebody looked.
            self.want(key, at, metrics);
        }
    }

    fn start(&mut self, now: Instant, metrics: &QueueMetrics) -> Option<Key> {
        let key = self.ready.pop_front()?;
        if let Some(since) = self.wanted.remove(&key) {
            metrics.waited.observe(now.duration_since(since).as_secs_f64());
        }
        if let Some(at) = self.timers.remove(&key) {
            self.agenda.remove(&(at, key.clone()));
        }
        self.running.insert(key.clone(), now);
        self.publish_depth(metrics);
        Some(key)
    }

    fn finish(&mut self, key: &Key, now: Instant, metrics: &QueueMetrics) {
        if let Some(since) = self.running.remove(key) {
            metrics.worked.observe(now.duration_since(since).as_secs_f64());
        }
        if self.wanted.contains_key(key) {
            self.ready.push_back(key.clone());
            self.publish_depth(metrics);
        }
    }

    fn next_alarm(&self) -> Option<Instant> {
        self.agenda.first().map(|(at, _)| *at)
    }

    fn publish_depth(&self, metrics: &QueueMetrics) {
        metrics.depth.set(i64::try_from(self.ready.len()).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn queue() -> (Queue, Arc<Metrics>) {
        let metrics = Metrics::new("0.0.0").unwrap();
        (Queue::new("test", &metrics), metrics)
    }

    fn key(name: &str) -> Key {
        Key::namespaced("ns", name)
    }

    /// What is ready now, without waiting.
    async fn poll(queue: &Queue) -> Option<Key> {
        tokio::time::timeout(Duration::ZERO, queue.next()).await.ok().flatten()
    }

    #[tokio::test(start_paused = true)]
    async fn many_events_are_one_pass() {
        let (queue, _) = queue();
        for _ in 0..5 {
            queue.add(key("a"));
        }
        assert_eq!(poll(&queue).await, Some(key("a")));
        queue.done(&key("a"));
        assert_eq!(poll(&queue).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_during_a_pass_makes_one_more_and_never_a_parallel_one() {
        let (queue, _) = queue();
        queue.add(key("a"));
        assert_eq!(poll(&queue).await, Some(key("a")));
        queue.add(key("a"));
        queue.add(key("a"));
        assert_eq!(poll(&queue).await, None, "still running");
        queue.done(&key("a"));
        assert_eq!(poll(&queue).await, Some(key("a")));
        queue.done(&key("a"));
        assert_eq!(poll(&queue).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_delayed_key_comes_at_its_time_and_the_earliest_request_counts() {
        let (queue, _) = queue();
        let start = Instant::now();
        queue.add_after(key("a"), Duration::from_secs(10));
        queue.add_after(key("a"), Duration::from_secs(3));
        queue.add_after(key("a"), Duration::from_secs(7));
        assert_eq!(queue.next().await, Some(key("a")));
        assert_eq!(start.elapsed().as_secs(), 3);
        queue.done(&key("a"));
        let more = tokio::time::timeout(Duration::from_secs(60), queue.next()).await;
        assert!(more.is_err(), "the later requests were replaced: {more:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn starting_a_pass_forgets_the_timer() {
        let (queue, _) = queue();
        queue.add_after(key("a"), Duration::from_secs(5));
        queue.add(key("a"));
        assert_eq!(poll(&queue).await, Some(key("a")));
        queue.done(&key("a"));
        assert!(
            tokio::time::timeout(Duration::from_secs(60), queue.next())
                .await
                .is_err()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_add_wakes_a_waiting_consumer() {
        let (queue, _) = queue();
        let consumer = tokio::spawn({
            let queue = queue.clone();
            async move { queue.next().await }
        });
        tokio::task::yield_now().await;
        queue.add(key("late"));
        assert_eq!(consumer.await.unwrap(), Some(key("late")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_closed_queue_hands_out_nothing_and_takes_nothing() {
        let (queue, _) = queue();
        queue.add(key("a"));
        assert_eq!(poll(&queue).await, Some(key("a")));
        queue.add(key("b"));
        queue.close();
        queue.add(key("c"));
        assert_eq!(queue.next().await, None);
        assert_eq!(queue.running().len(), 1);
        queue.done(&key("a"));
        assert!(queue.running().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn metrics_tell_depth_waiting_and_working() {
        let (queue, metrics) = queue();
        queue.add(key("a"));
        queue.add(key("b"));
        queue.add(key("a"));
        queue.retry_after(key("c"), Duration::from_secs(60));
        let text = metrics.render().unwrap();
        assert!(
            text.contains(r#"workqueue_depth{controller="test",name="test"} 2"#),
            "{text}"
        );
        assert!(
            text.contains(r#"workqueue_adds_total{controller="test",name="test"} 2"#),
            "{text}"
        );
        assert!(
            text.contains(r#"workqueue_retries_total{controller="test",name="test"} 1"#),
            "{text}"
        );

        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(poll(&queue).await, Some(key("a")));
        tokio::time::advance(Duration::from_secs(4)).await;
        let text = metrics.render().unwrap();
        assert!(
            text.contains(r#"workqueue_queue_duration_seconds_sum{controller="test",name="test"} 2"#),
            "{text}"
        );
        assert!(
            text.contains(r#"workqueue_unfinished_work_seconds{controller="test",name="test"} 4"#),
            "{text}"
        );
        assert!(
            text.contains(r#"workqueue_longest_running_processor_seconds{controller="test",name="test"} 4"#),
            "{text}"
        );
        queue.done(&key("a"));
        let text = metrics.render().unwrap();
        assert!(
            text.contains(r#"workqueue_work_duration_seconds_sum{controller="test",name="test"} 4"#),
            "{text}"
        );
        assert!(
            text.contains(r#"workqueue_unfinished_work_seconds{controller="test",name="test"} 0"#),
            "{text}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn due_keys_are_counted_while_no_worker_is_free() {
        let (queue, metrics) = queue();
        queue.add_after(key("a"), Duration::from_secs(1));
        assert!(
            tokio::time::timeout(Duration::from_secs(2), queue.promote_due())
                .await
                .is_err()
        );
        assert!(
            metrics
                .render()
                .unwrap()
                .contains(r#"workqueue_depth{controller="test",name="test"} 1"#)
        );
        assert_eq!(poll(&queue).await, Some(key("a")));
        let text = metrics.render().unwrap();
        assert!(
            text.contains(r#"workqueue_queue_duration_seconds_sum{controller="test",name="test"} 1"#),
            "{text}"
        );
    }

    #[derive(Clone, Debug)]
    enum Step {
        Add(u8),
        AddAfter(u8, u64),
        Take,
        Done,
        Pass(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..4_u8).prop_map(Step::Add),
            (0..4_u8, 0..20_u64).prop_map(|(k, s)| Step::AddAfter(k, s)),
            Just(Step::Take),
            Just(Step::Done),
            (0..10_u64).prop_map(Step::Pass),
        ]
    }

    proptest! {
        /// Whatever the order of events: no key runs twice at once, and every request is followed by a pass that
        /// started after it.
        #[test]
        fn exclusive_and_nothing_lost(steps in prop::collection::vec(step(), 1..80)) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            runtime.block_on(async {
                let (queue, _) = queue();
                let mut owed = BTreeSet::new();
                let mut running = VecDeque::new();
                for step in steps {
                    match step {
                        Step::Add(k) => {
                            queue.add(key(&k.to_string()));
                            owed.insert(key(&k.to_string()));
                        }
                        Step::AddAfter(k, s) => {
                            queue.add_after(key(&k.to_string()), Duration::from_secs(s));
                            owed.insert(key(&k.to_string()));
                        }
                        Step::Take => {
                            if let Some(key) = poll(&queue).await {
                                assert!(!running.contains(&key), "{key} runs twice at once");
                                owed.remove(&key);
                                running.push_back(key);
                            }
                        }
                        Step::Done => {
                            if let Some(key) = running.pop_front() {
                                queue.done(&key);
                            }
                        }
                        Step::Pass(s) => tokio::time::advance(Duration::from_secs(s)).await,
                    }
                }
                for key in running {
                    queue.done(&key);
                }
                tokio::time::advance(Duration::from_secs(60)).await;
                while let Some(key) = poll(&queue).await {
                    owed.remove(&key);
                    queue.done(&key);
                }
                assert!(owed.is_empty(), "asked for and never run: {owed:?}");
            });
        }
    }
}
