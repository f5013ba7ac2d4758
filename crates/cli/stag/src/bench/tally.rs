//! Counts of a thread's sessions while they run. Recording allocates nothing.

use iscsi_client::Session;
use iscsi_client::tune::Tuning;
use load::Latency;

/// Errors and mismatches whose text is kept.
const KEPT: usize = 16;

/// Counts of one thread, or of all of them.
#[derive(Debug, Default)]
pub struct Tally {
    /// Latencies, those of commands that were never sent included.
    pub latency: Latency,
    /// Reads that ended well.
    pub reads: u64,
    /// Writes that ended well.
    pub writes: u64,
    /// I/Os that were due and could not be sent before the end.
    pub unsent: u64,
    /// I/Os that failed, and blocks that were wrong.
    pub errors: u64,
    /// Texts of the first of these errors.
    pub messages: Vec<String>,
    /// Blocks that were compared with their stamp.
    pub verified: u64,
    /// Listings of directories, and the entries in them.
    pub listed: (u64, u64),
    /// Sessions that were lost and made again.
    pub reconnects: u64,
    /// Recoveries within sessions.
    pub recovered: Recovered,
    /// Tuning state of the first session that tunes itself.
    pub tuning: Option<Tuning>,
}

/// Counts of error recovery within sessions.
#[derive(Debug, Clone, Copy, Default)]
pub struct Recovered {
    pub retries: u64,
    /// Data, R2Ts and statuses asked for again.
    pub snacks: u64,
    /// Commands that were reassigned to another connection.
    pub reassigns: u64,
    /// Connections lost and made again.
    pub connections: u64,
}

impl Tally {
    /// Counts an I/O that ended well.
    #[inline]
    pub fn done(&mut self, write: bool, latency_ns: u64) {
        self.latency.record(latency_ns);
        *(if write { &mut self.writes } else { &mut self.reads }) += 1;
    }

    /// Counts an I/O that was due `latency_ns` before the end and was never sent.
    pub fn unsent(&mut self, latency_ns: u64) {
        self.latency.record(latency_ns);
        self.unsent += 1;
    }

    pub fn error(&mut self, message: impl FnOnce() -> String) {
        self.errors += 1;
        if self.messages.len() < KEPT {
            self.messages.push(message());
        }
    }

    /// I/Os that ended well.
    pub fn ios(&self) -> u64 {
        self.reads + self.writes
    }

    /// Adds a session's recoveries, and keeps the first session's tuning.
    pub fn recovered(&mut self, session: &Session) {
        self.reconnects += session.reconnects();
        self.tuning = self.tuning.take().or_else(|| session.tuning());
        let counted = session.recoveries();
        self.recovered.retries += counted.retries;
        self.recovered.snacks += counted.snacks();
        self.recovered.reassigns += counted.reassigns;
        self.recovered.connections += counted.connections;
    }

    /// Adds another thread's counts.
    pub fn add(&mut self, other: &Self) {
        self.latency.add(&other.latency);
        self.reads += other.reads;
        self.writes += other.writes;
        self.unsent += other.unsent;
        self.errors += other.errors;
        self.verified += other.verified;
        self.listed = (self.listed.0 + other.listed.0, self.listed.1 + other.listed.1);
        self.reconnects += other.reconnects;
        self.tuning = self.tuning.take().or_else(|| other.tuning.clone());
        self.recovered.retries += other.recovered.retries;
        self.recovered.snacks += other.recovered.snacks;
        self.recovered.reassigns += other.recovered.reassigns;
        self.recovered.connections += other.recovered.connections;
        let room = KEPT.saturating_sub(self.messages.len());
        self.messages.extend(other.messages.iter().take(room).cloned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_keep_everything_and_a_bounded_number_of_messages() {
        let (mut a, mut b) = (Tally::default(), Tally::default());
        for n in 0..20 {
            a.error(|| format!("a{n}"));
            b.error(|| format!("b{n}"));
            b.done(true, 1000);
            b.unsent(2000);
        }
        a.add(&b);
        assert_eq!((a.errors, a.messages.len(), a.writes, a.unsent), (40, KEPT, 20, 20));
        assert_eq!(a.latency.count(), 40);
    }
}
