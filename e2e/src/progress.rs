//! What a person sees while something takes long: one line that lives in a terminal, plain lines in a pipe.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

/// A running step. In a terminal its line shows the time that passes; in a pipe it speaks at the start, now and then, and at the end.
#[derive(Debug)]
pub struct Step {
    label: String,
    began: Instant,
    ticker: JoinHandle<()>,
}

impl Step {
    pub fn start(label: impl Into<String>) -> Self {
        let label = label.into();
        let began = Instant::now();
        let ticker = tokio::spawn(tick(label.clone(), began));
        Self { label, began, ticker }
    }

    pub fn done(self) {
        self.ticker.abort();
        println!("{}  ok  {}  {}", clear(), self.label, elapsed(self.began.elapsed()));
    }
}

impl Drop for Step {
    // A step that ends without `done` has failed; the error tells the rest.
    fn drop(&mut self) {
        if !self.ticker.is_finished() {
            self.ticker.abort();
            if std::io::stdout().is_terminal() {
                print!("{}", clear());
            }
        }
    }
}

async fn tick(label: String, began: Instant) {
    let terminal = std::io::stdout().is_terminal();
    if !terminal {
        println!("  ..  {label}");
    }
    let mut interval = tokio::time::interval(if terminal {
        Duration::from_millis(250)
    } else {
        Duration::from_secs(30)
    });
    interval.tick().await;
    loop {
        interval.tick().await;
        if terminal {
            print!("{}  ..  {label}  {}", clear(), elapsed(began.elapsed()));
            // A terminal that went away is no reason to stop the work.
            let _ = std::io::stdout().flush();
        } else {
            println!("  ..  {label}  {}", elapsed(began.elapsed()));
        }
    }
}

fn clear() -> &'static str {
    if std::io::stdout().is_terminal() {
        "\r\x1b[2K"
    } else {
        ""
    }
}

/// A duration as people read it: `0.8s`, `14s`, `3m05s`.
pub fn elapsed(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..10 => format!("{:.1}s", duration.as_secs_f64()),
        10..60 => format!("{seconds}s"),
        _ => format!("{}m{:02}s", seconds / 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_like_a_clock() {
        for (milliseconds, text) in [(800, "0.8s"), (14_200, "14s"), (60_000, "1m00s"), (3_725_000, "62m05s")] {
            assert_eq!(elapsed(Duration::from_millis(milliseconds)), text);
        }
    }
}
