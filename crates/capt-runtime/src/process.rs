//! Memory, processor time and open files of this process, read from `/proc/self` under the standard metric names.
//!
//! A value that cannot be read keeps its last reading: a missing `/proc` must not cost the other metrics.

use std::{fs, sync::Mutex, sync::PoisonError};

use prometheus::{Counter, Gauge, IntGauge, Registry};

/// Linux reports processor time to user space in hundredths of a second on every architecture.
const TICKS_PER_SECOND: f64 = 100.0;

#[derive(Debug)]
pub(crate) struct ProcessMetrics {
    cpu: Counter,
    /// Serialises scrapes, so that two at once do not both add the same difference.
    cpu_lock: Mutex<()>,
    resident: IntGauge,
    open_fds: IntGauge,
}

impl ProcessMetrics {
    pub(crate) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let metrics = Self {
            cpu: Counter::new("process_cpu_seconds_total", "Processor time used, user and system.")?,
            cpu_lock: Mutex::new(()),
            resident: IntGauge::new("process_resident_memory_bytes", "Memory in use.")?,
            open_fds: IntGauge::new("process_open_fds", "Open files and sockets.")?,
        };
        registry.register(Box::new(metrics.cpu.clone()))?;
        registry.register(Box::new(metrics.resident.clone()))?;
        registry.register(Box::new(metrics.open_fds.clone()))?;

        let start = Gauge::new(
            "process_start_time_seconds",
            "When the process started, in seconds since 1970.",
        )?;
        if let Some(seconds) = start_time() {
            start.set(seconds);
        }
        registry.register(Box::new(start))?;
        let limit = IntGauge::new("process_max_fds", "How many files may be open at once.")?;
        if let Some(max) = read("/proc/self/limits").as_deref().and_then(parse_max_fds) {
            limit.set(max);
        }
        registry.register(Box::new(limit))?;
        metrics.refresh();
        Ok(metrics)
    }

    pub(crate) fn refresh(&self) {
        if let Some(seconds) = read("/proc/self/stat").as_deref().and_then(parse_cpu_seconds) {
            let _one_at_a_time = self.cpu_lock.lock().unwrap_or_else(PoisonError::into_inner);
            let more = seconds - self.cpu.get();
            if more > 0.0 {
                self.cpu.inc_by(more);
            }
        }
        if let Some(bytes) = read("/proc/self/status").as_deref().and_then(parse_resident_bytes) {
            self.resident.set(bytes);
        }
        if let Ok(entries) = fs::read_dir("/proc/self/fd") {
            self.open_fds.set(i64::try_from(entries.count()).unwrap_or(i64::MAX));
        }
    }
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// Field `n` of `/proc/self/stat`, counted as in proc(5). The second field, the program's name, may contain blanks and
/// parentheses, so counting starts after the last closing one.
fn stat_field(stat: &str, n: usize) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(n.checked_sub(3)?)?.parse().ok()
}

fn parse_cpu_seconds(stat: &str) -> Option<f64> {
    Some((stat_field(stat, 14)? + stat_field(stat, 15)?) / TICKS_PER_SECOND)
}

fn parse_resident_bytes(status: &str) -> Option<i64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: i64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

fn parse_max_fds(limits: &str) -> Option<i64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn start_time() -> Option<f64> {
    let since_boot = stat_field(&read("/proc/self/stat")?, 22)? / TICKS_PER_SECOND;
    let boot: f64 = read("/proc/stat")?
        .lines()
        .find_map(|line| line.strip_prefix("btime "))?
        .trim()
        .parse()
        .ok()?;
    Some(boot + since_boot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_name_with_blanks_and_parentheses_is_skipped() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 4 0 12345 1000000 500";
        assert_eq!(parse_cpu_seconds(stat), Some(3.0));
        assert_eq!(stat_field(stat, 22), Some(12345.0));
    }

    #[test]
    fn resident_memory_is_in_bytes() {
        assert_eq!(
            parse_resident_bytes("Name:\tx\nVmRSS:\t    2048 kB\n"),
            Some(2 * 1024 * 1024)
        );
        assert_eq!(parse_resident_bytes("Name:\tx\n"), None);
    }

    #[test]
    fn the_soft_limit_of_open_files_counts() {
        let limits = "Limit   Soft Limit  Hard Limit  Units\nMax open files            1024                 524288               files\n";
        assert_eq!(parse_max_fds(limits), Some(1024));
    }

    #[test]
    fn this_process_uses_memory_and_files_and_started_in_the_past() {
        let metrics = ProcessMetrics::register(&Registry::new()).unwrap();
        assert!(metrics.resident.get() > 1024 * 1024);
        assert!(metrics.open_fds.get() > 2);
        let start = start_time().unwrap();
        let now = jiff::Timestamp::now().as_second() as f64;
        assert!(start <= now + 1.0 && start > now - 86_400.0, "{start} against {now}");
    }
}
