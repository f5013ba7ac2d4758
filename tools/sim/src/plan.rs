//! Plan of a seed: the network, the disk, the target, the initiators, and the times of faults.

use std::time::Duration;

use backing::engine::Engine;
use backing::spec::CacheMode;
use disk::unit::DiskOptions;
use iscsi::keys::{DigestChoice, Offer};

use crate::random::Rng;

/// A time in microseconds.
pub type Micros = u64;

/// One millisecond.
pub const MS: Micros = 1_000;
/// One second.
pub const SECOND: Micros = 1_000_000;

/// The properties of all links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quality {
    /// Shortest and longest time that a segment takes.
    pub latency: (Micros, Micros),
    /// Most bytes of a segment.
    pub segment: usize,
    /// Most bytes in flight in one direction.
    pub window: usize,
    /// Retransmitted segments per thousand.
    pub stalls: u64,
    /// The delay of a retransmission.
    pub stall: Micros,
}

/// The settings of the queue pairs of software iWARP.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// FPDUs carry a CRC.
    pub crc: bool,
    /// This side asks for markers.
    pub markers: bool,
    /// RDMA Reads at a time, each way.
    pub depth: u16,
    /// Most bytes of an FPDU.
    pub max_fpdu: usize,
}

/// The settings of the target.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Depth of a session's command window.
    pub queue_depth: u32,
    /// MaxRecvDataSegmentLength.
    pub max_recv_data_segment: u32,
    /// MaxBurstLength.
    pub max_burst: u32,
    /// FirstBurstLength.
    pub first_burst: u32,
    /// MaxOutstandingR2T.
    pub max_r2t: u16,
    /// MaxConnections.
    pub connections: u16,
    /// Over iSER, no unsolicited data.
    pub initial_r2t: bool,
    /// Bytes queued to a peer beyond which the server stops to receive from it.
    pub send_high_water: usize,
    /// Silence before a ping.
    pub nop_interval: Duration,
    /// Silence after a ping that ends the connection.
    pub nop_timeout: Duration,
    /// CHAP user and secret that initiators must know.
    pub chap: Option<(String, String)>,
    /// iSER, and the settings of its queue pairs.
    pub iser: Option<Setup>,
    /// ErrorRecoveryLevel.
    pub level: u8,
    /// DefaultTime2Wait, seconds.
    pub time2wait: u16,
    /// DefaultTime2Retain, seconds.
    pub time2retain: u16,
    /// A pause of a sequence of Data-Out that counts as a loss.
    pub data_timeout: Duration,
}

/// Settings of the file store that serves the disk.
#[derive(Clone, Copy, Debug)]
pub struct FilePlan {
    /// The cache mode.
    pub cache: CacheMode,
    /// The engine; `None` for the one that ships as the mode's default.
    pub engine: Option<Engine>,
}

impl FilePlan {
    /// Whether long reads are sent from the file's own pages. The initiator that reads them may
    /// find its own writes in a part of a block, if they run meanwhile
    /// (`docs/src/reference/stores.md`).
    pub fn lends(self) -> bool {
        let engine = self.engine.unwrap_or(Engine::default_for(self.cache));
        matches!(engine, Engine::Mmap | Engine::Sendpage)
    }
}

/// A whole run, decided before it begins.
#[derive(Clone)]
pub struct Plan {
    /// Bytes of a logical block.
    pub block: u32,
    /// Blocks of the disk.
    pub blocks: u64,
    /// Most blocks of one command.
    pub most_blocks: u64,
    /// The links.
    pub quality: Quality,
    /// The target.
    pub target: Settings,
    /// The disk.
    pub disk: DiskOptions,
    /// The store offers its own memory for the direct placement of writes.
    pub lands: bool,
    /// The disk lies on a file of the world.
    pub files: Option<FilePlan>,
    /// Longest operation of the store; `None` for no time at all.
    pub store_delay: Option<Micros>,
    /// PDUs that are lost.
    pub losses: Losses,
    /// The initiators.
    pub initiators: Vec<InitiatorPlan>,
    /// Initiators may use functions that end other initiators' commands, who must find that out.
    pub resets_by_others: bool,
    /// Faults, each with the number of submitted commands at which it occurs.
    pub troubles: Vec<(u64, Trouble)>,
    /// Changes by an administrator, in the same way.
    pub changes: Vec<(u64, Change)>,
}

/// A fault that must be found. A simulator that does not find it proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// The store reports some writes as done that are not.
    LostWrites,
    /// The store reports syncs as done that are not.
    LyingSyncs,
    /// A server forgets the failed flush of an earlier one.
    ForgottenFailures,
    /// A write of the store never ends.
    EndlessWrite,
    /// Data is damaged in transit, and no digest detects it.
    DamagedData,
}

/// An administrator's change to a running server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// New limits for new logins; a second target is added or removed.
    Apply,
    /// Drains all initiators, then undrains.
    Drain,
    /// A second server takes over the listening sockets and the disk.
    TakeOver,
}

/// An initiator's use of task management.
#[derive(Clone, Copy, Debug, Default)]
pub struct Manners {
    /// Commands that it aborts if they take long, per thousand.
    pub aborts: u64,
    /// The same for functions that end many tasks.
    pub functions: u64,
    /// The longest wait before ABORT TASK.
    pub patience: Micros,
}

/// One initiator.
#[derive(Clone)]
pub struct InitiatorPlan {
    /// Its name.
    pub name: String,
    /// Connections that it wants.
    pub connections: usize,
    /// iSER, and the settings of its queue pairs.
    pub iser: Option<Setup>,
    /// Its offer in negotiation.
    pub offer: Offer,
    /// Commands to submit in all.
    pub commands: u64,
    /// Most commands in flight.
    pub depth: usize,
    /// Longest time between commands.
    pub pause: Micros,
    /// Its first login uses a wrong secret, if CHAP is demanded.
    pub wrong_secret: bool,
    /// It demands that the target authenticate too, if CHAP is demanded.
    pub mutual_chap: bool,
    /// Its use of task management.
    pub manners: Manners,
    /// Weights of its commands.
    pub mix: Mix,
}

/// Weights of the kinds of commands.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// READ.
    pub read: u64,
    /// WRITE.
    pub write: u64,
    /// SYNCHRONIZE CACHE.
    pub sync: u64,
    /// UNMAP and WRITE SAME.
    pub provision: u64,
    /// VERIFY, COMPARE AND WRITE.
    pub compare: u64,
    /// Commands that must be refused.
    pub wrong: u64,
    /// Pings, and discovery sessions.
    pub talk: u64,
    /// Logouts, and logins after them.
    pub logout: u64,
}

/// Losses and repetitions per thousand PDUs, on connections with error recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// PDUs to the server that are lost.
    pub up: u64,
    /// PDUs to the client that are lost.
    pub down: u64,
    /// Commands that come a second time, as a retry does (RFC 7143 §7.2.1).
    pub repeated: u64,
}

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// A link is reset in the middle of its data.
    Cut,
    /// A link goes silent.
    Vanish,
    /// A bit flips in transit to the target.
    FlipUp,
    /// A bit flips in transit to the initiator.
    FlipDown,
    /// An initiator does not read for a while.
    Deaf(Micros),
    /// The target's process dies. The machine does not: the system's cache stays.
    Kill {
        /// Links go silent instead of being reset.
        silent: bool,
        /// Time until it is up again.
        down: Micros,
    },
    /// The power goes.
    PowerCut {
        /// As with `Kill`.
        silent: bool,
        /// As with `Kill`.
        down: Micros,
        /// Number of operations of the store before the cut; 0 for now.
        after: u64,
    },
    /// Some reads of the store fail.
    ReadErrors(u64),
    /// Some writes of the store fail.
    WriteErrors(u64),
    /// The next sync of the medium fails, and loses the data that it should have written.
    SyncError,
    /// The medium has room for this many more bytes.
    Space(u64),
    /// It has room again.
    SpaceAgain,
    /// The administrator acknowledges a failed flush, if there was one.
    Acknowledge,
}

impl Plan {
    /// Whether bits flip on a link.
    pub fn flips(&self) -> bool {
        self.troubles.iter().any(|(_, trouble)| matches!(trouble, Trouble::FlipUp | Trouble::FlipDown))
    }

    /// The plan of a seed.
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x5349_4d00);
        // One seed in eight is without troubles: there no error at all may occur.
        let calm = rng.chance(125);
        let block = rng.pick(&[512, 512, 512, 4096]);
        // One in forty moves more than a chunk of the unit at a time.
        let large = rng.chance(25);
        let blocks = if large { (3 << 20) / u64::from(block) } else { rng.between(16, 300) };
        let most_blocks = if large { blocks } else { rng.between(1, 64) };
        let pdus = [512, 513, 1000, 4096, 8192, 65_536, 262_144];
        let bursts = [512, 1024, 5000, 16_384, 65_536, 262_144];
        // Many tiny PDUs of a large transfer only cost time.
        let least = if large { 3 } else { 0 };
        let digests = rng.chance(500);
        let target = Settings {
            queue_depth: rng.pick(&[1, 2, 4, 16, 64]),
            max_recv_data_segment: rng.pick(&pdus[least..]),
            max_burst: rng.pick(&bursts[least..]),
            first_burst: rng.pick(&bursts[least..]),
            max_r2t: rng.pick(&[1, 1, 2, 8]),
            connections: rng.pick(&[1, 2, 4]),
            initial_r2t: rng.chance(400),
            send_high_water: rng.pick(&[1, 4096, 65_536, 1 << 20]),
            nop_interval: Duration::from_secs(rng.pick(&[0, 2, 5])),
            nop_timeout: Duration::from_secs(3),
            chap: rng.chance(300).then(|| ("user".to_owned(), "a secret of the simulator".to_owned())),
            iser: None,
            level: 0,
            time2wait: 2,
            time2retain: 20,
            data_timeout: Duration::from_secs(1),
        };
        let count: u64 = if large { 1 } else { rng.pick(&[1, 1, 2, 3]) };
        let mut initiators = Vec::new();
        for number in 0..count {
            initiators.push(InitiatorPlan {
                name: format!("iqn.2026-01.example.sim:initiator-{number}"),
                connections: rng.pick(&[1, 1, 2, 3]),
                iser: None,
                offer: Offer {
                    header_digest: if digests { DigestChoice::Require } else { DigestChoice::Never },
                    data_digest: if digests { DigestChoice::Require } else { DigestChoice::Never },
                    max_recv_data_segment_length: rng.pick(&pdus[least..]),
                    max_connections: 4,
                    initial_r2t: rng.chance(300),
                    immediate_data: rng.chance(700),
                    max_burst_length: rng.pick(&bursts[least..]),
                    first_burst_length: rng.pick(&bursts[least..]),
                    max_outstanding_r2t: rng.pick(&[1, 2, 8]),
                    ..Offer::default()
                },
                commands: if large { 24 } else { rng.between(40, 120) / count },
                depth: rng.pick(&[1, 2, 8, 20]),
                pause: rng.pick(&[0, 0, 500, 20 * MS]),
                wrong_secret: rng.chance(200),
                mutual_chap: rng.chance(400),
                manners: Manners {
                    aborts: rng.pick(&[0, 30, 200]),
                    functions: rng.pick(&[0, 0, 30]),
                    patience: rng.pick(&[100, 5000, 60_000]),
                },
                mix: Mix {
                    read: 30,
                    write: 30,
                    sync: rng.pick(&[0, 2, 8]),
                    provision: rng.pick(&[0, 6]),
                    compare: rng.pick(&[0, 8]),
                    wrong: rng.pick(&[0, 4]),
                    talk: rng.pick(&[0, 4]),
                    logout: rng.pick(&[0, 0, 1]),
                },
            });
        }
        let quality = Quality {
            latency: (rng.between(1, 100), rng.between(100, 3000)),
            segment: if large { 9000 } else { rng.pick(&[60, 1460, 9000, 65_536]) },
            window: if large { 262_144 } else { rng.pick(&[700, 4096, 65_536, 1 << 20]) },
            stalls: rng.pick(&[0, 2, 20]),
            stall: rng.pick(&[5, 50, 200]) * MS,
        };
        let commands: u64 = initiators.iter().map(|initiator| initiator.commands).sum();
        let troubles = if calm { Vec::new() } else { troubles(&mut rng, commands, digests) };
        let disk = DiskOptions {
            block_size: block,
            thin: true,
            write_cache: rng.chance(700),
            ..DiskOptions::default()
        };
        let store_delay = rng.pick(&[None, Some(100), Some(3 * MS), Some(40 * MS)]);
        let resets_by_others = initiators.len() > 1 && rng.chance(400);
        let mut plan = Self {
            resets_by_others,
            block,
            blocks,
            most_blocks,
            quality,
            target,
            disk,
            lands: false,
            files: None,
            store_delay,
            losses: Losses::default(),
            initiators,
            troubles,
            changes: Vec::new(),
        };
        let kinds = [Change::Apply, Change::Drain, Change::TakeOver];
        for _ in 0..rng.pick(&[0, 0, 1, 2, 4]) {
            plan.changes.push((rng.below(commands), rng.pick(&kinds)));
        }
        plan.changes.sort_by_key(|(at, _)| *at);
        // Drawn apart, so that the other worlds stay as they are.
        let mut rng = Rng::new(seed ^ 0x4953_4552);
        if rng.chance(350) {
            plan.over_rdma(&mut rng, digests);
        }
        let mut rng = Rng::new(seed ^ 0x4552_4c32);
        if plan.target.iser.is_none() && rng.chance(500) {
            plan.recovering(&mut rng);
            let mut rng = Rng::new(seed ^ 0x4552_4c33);
            if rng.chance(500) {
                plan.keeping_tasks(&mut rng, calm);
            }
        }
        let mut rng = Rng::new(seed ^ 0x4c41_4e44);
        plan.lands = rng.chance(800);
        let digests = digests && plan.target.iser.is_none();
        if plan.lands && plan.target.level == 0 && !digests {
            plan.writing_much(&mut rng);
        }
        plan
    }

    /// The same with ErrorRecoveryLevel 2: tasks outlive their connections, which are lost more
    /// often.
    fn keeping_tasks(&mut self, rng: &mut Rng, calm: bool) {
        self.target.level = 2;
        (self.target.time2wait, self.target.time2retain) = (rng.pick(&[0, 0, 1, 3]), rng.pick(&[5, 20, 60]));
        for initiator in &mut self.initiators {
            initiator.offer.error_recovery_level = rng.pick(&[1, 2, 2, 2, 2]);
        }
        let commands: u64 = self.initiators.iter().map(|initiator| initiator.commands).sum();
        if !calm {
            for _ in 0..rng.between(0, 6) {
                let trouble = if rng.chance(750) { Trouble::Cut } else { Trouble::Vanish };
                self.troubles.push((rng.below(commands), trouble));
            }
            self.troubles.sort_by_key(|(at, _)| *at);
        }
    }

    /// The same with writes that are long enough for direct placement.
    fn writing_much(&mut self, rng: &mut Rng) {
        self.most_blocks = self.most_blocks.max(rng.pick(&[64, 128]) * 1024 / u64::from(self.block));
        self.blocks = self.blocks.max(2 * self.most_blocks);
        self.target.max_recv_data_segment = rng.pick(&[4096, 65_536, 262_144]);
        for setup in self.initiators.iter_mut().filter_map(|initiator| initiator.iser.as_mut()) {
            setup.max_fpdu = rng.pick(&[256, 1460, 16_384, 65_536, 65_536]);
        }
    }

    /// The same with error recovery, over links that lose single PDUs.
    fn recovering(&mut self, rng: &mut Rng) {
        self.target.level = 1;
        self.target.data_timeout = Duration::from_millis(rng.pick(&[5000, 10_000, 20_000]));
        let losses = [0, 2, 5, 10];
        self.losses =
            Losses { up: rng.pick(&losses), down: rng.pick(&losses), repeated: rng.pick(&[0, 20, 200]) };
        for initiator in &mut self.initiators {
            initiator.offer.error_recovery_level = rng.pick(&[0, 1, 1, 1]);
        }
    }

    /// The same over iSER: CRCs stand for digests, a session has one connection.
    fn over_rdma(&mut self, rng: &mut Rng, crc: bool) {
        let mut setup = || Setup {
            crc,
            markers: rng.chance(300),
            depth: rng.pick(&[1, 2, 8, 128]),
            max_fpdu: rng.pick(&[256, 1460, 65_536]),
        };
        self.target.iser = Some(setup());
        self.target.connections = 1;
        for initiator in &mut self.initiators {
            initiator.iser = Some(setup());
            initiator.connections = 1;
        }
    }

    /// The plan of a seed, of a disk on a file.
    pub fn on_files(seed: u64) -> Self {
        let mut plan = Self::new(seed);
        let mut rng = Rng::new(seed ^ 0x4649_4c45);
        let cache = rng.pick(&[
            CacheMode::WriteBack,
            CacheMode::WriteBack,
            CacheMode::WriteThrough,
            CacheMode::Direct,
        ]);
        let engines: Vec<Engine> = Engine::ALL.map(|(engine, _)| engine).into_iter().collect();
        let engine = (!rng.chance(300)).then(|| rng.pick(&engines));
        plan.files = Some(FilePlan { cache, engine: engine.filter(|engine| engine.fits(cache).is_ok()) });
        plan.disk.write_cache = cache.write_cache();
        plan.lands = false;
        let fails = |trouble: &Trouble| matches!(trouble, Trouble::SyncError | Trouble::WriteErrors(_));
        let failures: Vec<u64> =
            plan.troubles.iter().filter(|(_, trouble)| fails(trouble)).map(|(at, _)| *at).collect();
        // A store that refuses flushes for the rest of its run tests little.
        for at in failures {
            plan.troubles.push((at + rng.between(5, 40), Trouble::Acknowledge));
        }
        plan.troubles.sort_by_key(|(at, _)| *at);
        plan
    }

    /// The plan of a seed with no faults but cut connections, each of which its session keeps;
    /// `None` for a seed without ErrorRecoveryLevel 2.
    pub fn with_cuts(seed: u64) -> Option<Self> {
        let mut plan = Self::new(seed);
        let keeps = |initiator: &InitiatorPlan| initiator.offer.error_recovery_level == 2;
        if plan.target.level < 2 || !plan.initiators.iter().all(keeps) {
            return None;
        }
        let commands: u64 = plan.initiators.iter().map(|initiator| initiator.commands).sum();
        plan.troubles = (1..=8).map(|part| (commands * part / 9, Trouble::Cut)).collect();
        plan.changes.clear();
        // Time for the slowest of links.
        plan.target.time2retain = 60;
        for initiator in &mut plan.initiators {
            (initiator.manners, initiator.mix.logout) = (Manners::default(), 0);
        }
        Some(plan)
    }
}

/// Troubles of some kinds, spread over the run.
fn troubles(rng: &mut Rng, commands: u64, digests: bool) -> Vec<(u64, Trouble)> {
    let mut troubles = Vec::new();
    let mut add = |rng: &mut Rng, per_mille: u64, most: u64, make: &mut dyn FnMut(&mut Rng) -> Trouble| {
        if rng.chance(per_mille) {
            for _ in 0..rng.between(1, most) {
                let at = rng.below(commands);
                let trouble = make(rng);
                troubles.push((at, trouble));
            }
        }
    };
    let down = |rng: &mut Rng| rng.pick(&[MS, 50 * MS, 4 * SECOND]);
    add(rng, 500, 4, &mut |_| Trouble::Cut);
    add(rng, 200, 2, &mut |_| Trouble::Vanish);
    if digests {
        add(rng, 400, 3, &mut |rng| if rng.chance(500) { Trouble::FlipUp } else { Trouble::FlipDown });
    }
    add(rng, 200, 3, &mut |rng| Trouble::Deaf(rng.between(MS, 900 * MS)));
    add(rng, 150, 2, &mut |rng| Trouble::Kill { silent: rng.chance(300), down: down(rng) });
    add(rng, 400, 3, &mut |rng| Trouble::PowerCut {
        silent: rng.chance(500),
        down: down(rng),
        after: rng.pick(&[0, 0, 1, 5, 20]),
    });
    add(rng, 150, 2, &mut |rng| Trouble::ReadErrors(rng.between(1, 3)));
    add(rng, 150, 2, &mut |rng| Trouble::WriteErrors(rng.between(1, 3)));
    add(rng, 150, 1, &mut |_| Trouble::SyncError);
    add(rng, 150, 1, &mut |rng| Trouble::Space(rng.below(100_000)));
    let space: Vec<u64> =
        troubles.iter().filter(|(_, t)| matches!(t, Trouble::Space(_))).map(|(at, _)| *at).collect();
    troubles.extend(space.iter().map(|at| (at + 10, Trouble::SpaceAgain)));
    troubles.sort_by_key(|(at, _)| *at);
    troubles
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_third_of_the_plans_speaks_iser_with_every_kind_of_queue_pair() {
        let setups: Vec<_> = (0..400).filter_map(|seed| Plan::new(seed).target.iser).collect();
        assert!((100..180).contains(&setups.len()), "{} of 400 plans", setups.len());
        for wanted in [true, false] {
            assert!(setups.iter().any(|setup| setup.crc == wanted));
            assert!(setups.iter().any(|setup| setup.markers == wanted));
        }
    }
}
