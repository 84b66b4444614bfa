//! What is printed: one row per figure, in Markdown, so that it can be pasted as it is.
#![expect(clippy::print_stdout, reason = "a table for the terminal")]

use std::{fmt, time::Duration};

use domain::clock;

/// How much of something.
#[derive(Clone, Copy)]
pub enum Amount {
    Time(Duration),
    /// One thing in terms of another.
    Factor(f64),
    Bytes(f64),
}

/// What a figure should be.
pub enum Target {
    AtMost(Amount),
    AtLeast(Amount),
    /// Shown for comparison.
    Unset,
}

impl Amount {
    fn size(self) -> f64 {
        match self {
            Self::Time(time) => time.as_secs_f64(),
            Self::Factor(size) | Self::Bytes(size) => size,
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Time(time) if time < Duration::from_micros(10) => {
                write!(out, "{} ns", time.as_nanos())
            }
            Self::Time(time) if time < Duration::from_millis(1) => {
                write!(out, "{} µs", time.as_micros())
            }
            Self::Time(time) if time >= Duration::from_secs(1) => {
                write!(out, "{:.2} s", time.as_secs_f64())
            }
            Self::Time(time) => write!(out, "{:.1} ms", time.as_secs_f64() * 1e3),
            Self::Factor(factor) => write!(out, "{factor:.2}×"),
            Self::Bytes(bytes) if bytes < 1024.0 * 1024.0 => {
                write!(out, "{:.1} KiB", bytes / 1024.0)
            }
            Self::Bytes(bytes) => write!(out, "{:.1} MiB", bytes / 1024.0 / 1024.0),
        }
    }
}

/// The machine, and the head of the table.
pub fn head() {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load
        .split(' ')
        .next()
        .filter(|load| !load.is_empty())
        .unwrap_or("unknown");
    println!(
        "{cores} cores; load average before: {load}. A ratio of 1 is the target, less is better.\n"
    );
    line(["figure", "target", "measured", "ratio", "remark"]);
    println!("|---|---|---|---|---|");
}

/// One figure.
pub fn row(figure: &str, target: &Target, measured: Amount, remark: &str) {
    let (target, ratio) = match target {
        Target::AtMost(most) => (
            format!("≤ {most}"),
            format!("{:.2}", measured.size() / most.size()),
        ),
        Target::AtLeast(least) => (
            format!("≥ {least}"),
            format!("{:.2}", least.size() / measured.size()),
        ),
        Target::Unset => (String::new(), String::new()),
    };
    line([figure, &target, &measured.to_string(), &ratio, remark]);
}

fn line([figure, target, measured, ratio, remark]: [&str; 5]) {
    println!("| {figure:<68} | {target:<10} | {measured:>10} | {ratio:>5} | {remark} |");
}

/// How long something took, each time.
pub struct Times(Vec<Duration>);

impl Times {
    pub fn of(mut times: Vec<Duration>) -> Self {
        assert!(!times.is_empty(), "nothing was measured");
        times.sort_unstable();
        Self(times)
    }

    /// The time that `percent` of all were within.
    pub fn percentile(&self, percent: usize) -> Duration {
        self.0[(self.0.len() * percent / 100).min(self.0.len() - 1)]
    }

    pub fn median(&self) -> Duration {
        self.percentile(50)
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }
}

/// The one in the middle.
pub fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_unstable_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// How long one of `times` repetitions takes, `rounds` times over.
pub fn repeat<T>(rounds: usize, times: u32, mut work: impl FnMut() -> T) -> Times {
    let mut round = || {
        let start = clock::instant();
        for _ in 0..times {
            std::hint::black_box(work());
        }
        start.elapsed() / times
    };
    Times::of((0..rounds).map(|_| round()).collect())
}
