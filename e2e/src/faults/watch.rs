//! One watch on its way to the controller: line by line, and held back, thinned out or broken off as the flow says.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures::{Stream, StreamExt};
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::plan::Answer;

/// What happens to all watches of a controller at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Open,
    /// Nothing gets through; it comes later.
    Held,
    /// Nothing gets through; it never comes.
    Losing,
    /// No watch can be started.
    Shut,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Flow {
    pub(super) mode: Mode,
    /// How often all watches were broken off: one that began before is over, however short the break.
    pub(super) breaks: u64,
}

/// A watch between the API server, which is read as fast as it sends, and the controller.
pub(super) struct Tap {
    /// Lines that get through whatever the flow.
    first: VecDeque<Bytes>,
    lines: mpsc::UnboundedReceiver<(Instant, Bytes)>,
    /// The line that is waited for, or waits to be due.
    next: Option<(Instant, Bytes)>,
    flow: watch::Receiver<Flow>,
    breaks: u64,
    lag: Duration,
    has_lost: bool,
    has_ended: bool,
    /// Ends with the tap.
    _pump: JoinSet<()>,
}

impl Tap {
    /// `first` is sent before anything that comes from the API server, which is read from `body`.
    pub(super) fn new(first: VecDeque<Bytes>, body: Body, flow: watch::Receiver<Flow>, lag: Duration) -> Self {
        let (sender, lines) = mpsc::unbounded_channel();
        let mut pump = JoinSet::new();
        pump.spawn(async move {
            let mut split = Splitter::default();
            let mut body = body.into_data_stream();
            while let Some(Ok(piece)) = body.next().await {
                for line in split.push(&piece) {
                    if sender.send((Instant::now(), line)).is_err() {
                        return;
                    }
                }
            }
        });
        let breaks = flow.borrow().breaks;
        Self {
            first,
            lines,
            next: None,
            flow,
            breaks,
            lag,
            has_lost: false,
            has_ended: false,
            _pump: pump,
        }
    }

    pub(super) fn into_body(self) -> Body {
        Body::from_stream(self.into_stream())
    }

    fn into_stream(self) -> impl Stream<Item = io::Result<Bytes>> {
        futures::stream::unfold(self, |mut tap| async move {
            let line = tap.line().await?;
            Some((line, tap))
        })
    }

    /// The next line for the controller; `None` when the watch ends in good order.
    async fn line(&mut self) -> Option<io::Result<Bytes>> {
        loop {
            if let Some(line) = self.first.pop_front() {
                return Some(Ok(line));
            }
            if self.has_ended {
                return None;
            }
            let flow = *self.flow.borrow_and_update();
            if flow.breaks != self.breaks {
                self.has_ended = true;
                return Some(Err(io::ErrorKind::ConnectionReset.into()));
            }
            match flow.mode {
                Mode::Held | Mode::Shut => self.flow.changed().await.ok()?,
                Mode::Losing => tokio::select! {
                    changed = self.flow.changed() => changed.ok()?,
                    line = self.lines.recv() => {
                        line?;
                        self.next = None;
                        self.has_lost = true;
                    }
                },
                Mode::Open if self.has_lost => {
                    self.has_ended = true;
                    self.first.push_back(event("ERROR", Answer::EXPIRED.body()));
                }
                Mode::Open => tokio::select! {
                    changed = self.flow.changed() => changed.ok()?,
                    line = due(&mut self.next, &mut self.lines, self.lag) => return line.map(Ok),
                },
            }
        }
    }
}

/// Can be dropped and called again without losing a line.
async fn due(
    next: &mut Option<(Instant, Bytes)>,
    lines: &mut mpsc::UnboundedReceiver<(Instant, Bytes)>,
    lag: Duration,
) -> Option<Bytes> {
    if next.is_none() {
        *next = Some(lines.recv().await?);
    }
    let (came, _) = next.as_ref()?;
    if !lag.is_zero() {
        sleep_until(*came + lag).await;
    }
    next.take().map(|(_, line)| line)
}

/// An event as it stands in a watch.
pub(super) fn event(type_: &str, object: serde_json::Value) -> Bytes {
    format!("{}\n", json!({"type": type_, "object": object})).into()
}

/// Makes lines of what comes in pieces.
#[derive(Default)]
struct Splitter(Vec<u8>);

impl Splitter {
    fn push(&mut self, piece: &[u8]) -> Vec<Bytes> {
        self.0.extend_from_slice(piece);
        let mut lines = Vec::new();
        while let Some(end) = self.0.iter().position(|byte| *byte == b'\n') {
            lines.push(self.0.drain(..=end).collect());
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A watch that has brought these lines and stays open.
    fn tap(lines: &[&'static str], flow: &watch::Sender<Flow>, lag: Duration) -> Tap {
        let pieces: Vec<io::Result<Bytes>> = lines
            .iter()
            .map(|line| Ok(Bytes::from_static(line.as_bytes())))
            .collect();
        let body = Body::from_stream(futures::stream::iter(pieces).chain(futures::stream::pending()));
        Tap::new(VecDeque::new(), body, flow.subscribe(), lag)
    }

    fn flow(mode: Mode) -> watch::Sender<Flow> {
        watch::Sender::new(Flow { mode, breaks: 0 })
    }

    async fn nothing_for(tap: &mut Tap, time: Duration) {
        assert!(
            tokio::time::timeout(time, tap.line()).await.is_err(),
            "something got through"
        );
    }

    const SHORT: Duration = Duration::from_millis(50);

    #[test]
    fn lines_are_put_together_from_pieces() {
        let mut split = Splitter::default();
        assert!(split.push(b"ab").is_empty());
        assert_eq!(split.push(b"c\nd\ne"), ["abc\n", "d\n"]);
        assert_eq!(split.push(b"\n"), ["e\n"]);
    }

    #[tokio::test]
    async fn what_is_held_comes_later_and_in_order() {
        let flow = flow(Mode::Held);
        let mut tap = tap(&["a\nb", "\n"], &flow, Duration::ZERO);
        nothing_for(&mut tap, SHORT).await;
        flow.send_modify(|flow| flow.mode = Mode::Open);
        assert_eq!(tap.line().await.unwrap().unwrap(), "a\n");
        assert_eq!(tap.line().await.unwrap().unwrap(), "b\n");
        nothing_for(&mut tap, SHORT).await;
    }

    #[tokio::test]
    async fn what_is_lost_is_followed_by_gone_and_the_end() {
        let flow = flow(Mode::Losing);
        let mut tap = tap(&["a\n"], &flow, Duration::ZERO);
        nothing_for(&mut tap, SHORT).await;
        flow.send_modify(|flow| flow.mode = Mode::Open);
        let gone: serde_json::Value = serde_json::from_slice(&tap.line().await.unwrap().unwrap()).unwrap();
        assert_eq!((&gone["type"], &gone["object"]["code"]), (&json!("ERROR"), &json!(410)));
        assert!(tap.line().await.is_none());
    }

    #[tokio::test]
    async fn a_watch_that_lost_nothing_goes_on() {
        let flow = flow(Mode::Losing);
        let mut tap = tap(&[], &flow, Duration::ZERO);
        nothing_for(&mut tap, SHORT).await;
        flow.send_modify(|flow| flow.mode = Mode::Open);
        nothing_for(&mut tap, SHORT).await;
    }

    #[tokio::test]
    async fn a_break_is_noticed_even_when_it_is_over() {
        let flow = flow(Mode::Open);
        let mut tap = tap(&["a\n"], &flow, Duration::ZERO);
        flow.send_modify(|flow| flow.breaks += 1);
        assert!(tap.line().await.unwrap().is_err());
        assert!(tap.line().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lag_delays_each_line_by_itself() {
        let flow = flow(Mode::Open);
        let lag = Duration::from_secs(1);
        let mut tap = tap(&["a\nb\n"], &flow, lag);
        let begun = Instant::now();
        assert_eq!(tap.line().await.unwrap().unwrap(), "a\n");
        assert_eq!(tap.line().await.unwrap().unwrap(), "b\n");
        assert_eq!(begun.elapsed().as_secs(), 1, "not one second per line");
    }
}
