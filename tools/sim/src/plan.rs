//! What a seed stands for: the network, the disk, the target, the initiators, and what goes wrong when.

use std::time::Duration;

use disk::unit::DiskOptions;
use iscsi::keys::{DigestChoice, Offer};
use iscsi::pdu::Isid;

use crate::clock::{MS, Micros, SECOND};
use crate::network::Quality;
use crate::random::Rng;
use crate::rdma::Setup;
use crate::target::Settings;

/// The whole of a run, decided before it begins.
#[derive(Clone)]
pub struct Plan {
    /// Bytes of a logical block.
    pub block: u32,
    /// Blocks of the disk.
    pub blocks: u64,
    /// Blocks of one command at most.
    pub most_blocks: u64,
    /// The links.
    pub quality: Quality,
    /// The target.
    pub target: Settings,
    /// The disk.
    pub disk: DiskOptions,
    /// The store has memory of its own for writes to land in.
    pub lands: bool,
    /// How long operations of the store take at most; `None` for no time at all.
    pub store_delay: Option<Micros>,
    /// The initiators.
    pub initiators: Vec<InitiatorPlan>,
    /// Initiators may use functions that end other initiators' commands, who must find out.
    pub resets_by_others: bool,
    /// What goes wrong, by the number of commands that have been submitted.
    pub troubles: Vec<(u64, Trouble)>,
}

/// One initiator.
#[derive(Clone)]
pub struct InitiatorPlan {
    /// Its name.
    pub name: String,
    /// Its ISID.
    pub isid: Isid,
    /// Connections that it wants.
    pub connections: usize,
    /// iSER, and how its queue pairs are run.
    pub iser: Option<Setup>,
    /// What it brings to negotiation.
    pub offer: Offer,
    /// Begin with operational negotiation.
    pub skip_security: bool,
    /// CmdSN of its sessions' first command.
    pub first_cmd_sn: u32,
    /// Commands to submit in all.
    pub commands: u64,
    /// Commands under way at most.
    pub depth: usize,
    /// Time between commands at most.
    pub pause: Micros,
    /// Place Data-In piece by piece as it arrives, instead of PDU by PDU.
    pub piecewise: bool,
    /// Its first login brings a secret that is not the target's, if CHAP is asked for.
    pub wrong_secret: bool,
    /// It asks the target to prove itself, if CHAP is asked for.
    pub mutual_chap: bool,
    /// Of a thousand PDUs that it receives, how many vanish: with error recovery only.
    pub lost_per_mille: u64,
    /// What it likes to do.
    pub mix: Mix,
}

/// How often each kind of command comes, by weight.
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
    /// Pings and texts.
    pub talk: u64,
    /// ABORT TASK.
    pub abort: u64,
    /// Functions that end many tasks.
    pub reset: u64,
    /// Logouts, and logins after them.
    pub logout: u64,
}

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// A link is reset in the middle of whatever it carries.
    Cut,
    /// A link goes silent.
    Vanish,
    /// A bit flips on the way to the target.
    FlipUp,
    /// A bit flips on the way to the initiator.
    FlipDown,
    /// An initiator does not read for a while.
    Deaf(Micros),
    /// The target's process dies. The machine does not: what the system has cached stays.
    Kill {
        /// Links go silent instead of being reset.
        silent: bool,
        /// Until it is up again.
        down: Micros,
    },
    /// The power goes.
    PowerCut {
        /// As with `Kill`.
        silent: bool,
        /// As with `Kill`.
        down: Micros,
        /// After so many more operations of the store; 0 for now.
        after: u64,
    },
    /// Some reads of the store fail.
    ReadErrors(u64),
    /// Some writes of the store fail.
    WriteErrors(u64),
    /// The next sync of the medium fails, and loses what it should have written.
    SyncError,
    /// The medium has room for so many more bytes.
    Space(u64),
    /// It has room again.
    SpaceAgain,
}

impl Trouble {
    /// Whether it may cost initiators their sessions.
    pub fn disrupts(self) -> bool {
        matches!(
            self,
            Self::Cut
                | Self::Vanish
                | Self::FlipUp
                | Self::FlipDown
                | Self::Kill { .. }
                | Self::PowerCut { .. }
        )
    }
}

impl Plan {
    /// Whether bits flip on a link.
    pub fn flips(&self) -> bool {
        self.troubles.iter().any(|(_, trouble)| matches!(trouble, Trouble::FlipUp | Trouble::FlipDown))
    }

    /// The plan of a seed.
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x5349_4d00);
        // One seed in eight is without troubles: there nothing at all may go wrong.
        let calm = rng.chance(125);
        let block = rng.pick(&[512, 512, 512, 4096]);
        // One in forty moves more than a chunk of the unit at a time.
        let large = rng.chance(25);
        let blocks = if large { (3 << 20) / u64::from(block) } else { rng.between(16, 300) };
        let most_blocks = if large { blocks } else { rng.between(1, 64) };
        let pdus = [512, 513, 1000, 4096, 8192, 65_536, 262_144];
        let bursts = [512, 1024, 5000, 16_384, 65_536, 262_144];
        // A pair that makes many tiny PDUs of a large transfer only costs time.
        let least = if large { 3 } else { 0 };
        let digest = [DigestChoice::Never, DigestChoice::Allow, DigestChoice::Prefer, DigestChoice::Require];
        let digests = rng.chance(500);
        let their_digest = if digests { rng.pick(&digest[1..]) } else { DigestChoice::Allow };
        let target = Settings {
            queue_depth: rng.pick(&[1, 2, 4, 16, 64]),
            max_recv_data_segment: rng.pick(&pdus[least..]),
            max_burst: rng.pick(&bursts[least..]),
            first_burst: rng.pick(&bursts[least..]),
            max_r2t: rng.pick(&[1, 1, 2, 8]),
            connections: rng.pick(&[1, 2, 4]),
            initial_r2t: rng.chance(400),
            immediate_data: rng.chance(600),
            header_digest: their_digest,
            data_digest: their_digest,
            send_high_water: rng.pick(&[1, 4096, 65_536, 1 << 20]),
            nop_interval: Duration::from_secs(rng.pick(&[0, 2, 5])),
            nop_timeout: Duration::from_secs(3),
            chap: rng.chance(300).then(|| ("user".to_owned(), "a secret of the simulator".to_owned())),
            iser: None,
            text_len: rng.pick(&[0, 500, 20_000]),
            level: 0,
            time2wait: 2,
            time2retain: 20,
            data_timeout: Duration::from_secs(1),
            lost_per_mille: 0,
        };
        let count = if large { 1 } else { rng.pick(&[1, 1, 2, 3]) };
        let mut initiators = Vec::new();
        for number in 0..count {
            initiators.push(InitiatorPlan {
                name: format!("iqn.2026-01.example.sim:initiator-{number}"),
                isid: Isid::random([1, 2, 3], number),
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
                skip_security: rng.chance(500),
                first_cmd_sn: rng.pick(&[0, 1, u32::MAX - 5, (1 << 31) - 3]),
                commands: if large { 24 } else { rng.between(40, 120) / u64::from(count) },
                depth: rng.pick(&[1, 2, 8, 20]),
                pause: rng.pick(&[0, 0, 500, 20 * MS]),
                piecewise: rng.chance(500),
                wrong_secret: rng.chance(200),
                mutual_chap: rng.chance(400),
                lost_per_mille: 0,
                mix: Mix {
                    read: 30,
                    write: 30,
                    sync: rng.pick(&[0, 2, 8]),
                    provision: rng.pick(&[0, 6]),
                    compare: rng.pick(&[0, 8]),
                    wrong: rng.pick(&[0, 4]),
                    talk: rng.pick(&[0, 4]),
                    abort: rng.pick(&[0, 6]),
                    reset: rng.pick(&[0, 0, 2]),
                    logout: rng.pick(&[0, 0, 1]),
                },
            });
        }
        let quality = Quality {
            latency: (rng.between(1, 100), rng.between(100, 3000)),
            segment: if large {
                (500, 9000)
            } else {
                rng.pick(&[(1, 60), (1, 1460), (200, 9000), (1448, 1448)])
            },
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
            store_delay,
            initiators,
            troubles,
        };
        // Drawn apart, so that the other worlds stay what they were.
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

    /// The same with ErrorRecoveryLevel 2: tasks outlive their connections, which are lost more often.
    fn keeping_tasks(&mut self, rng: &mut Rng, calm: bool) {
        self.target.level = 2;
        (self.target.time2wait, self.target.time2retain) = (rng.pick(&[0, 0, 1, 3]), rng.pick(&[5, 20, 60]));
        for initiator in &mut self.initiators {
            initiator.offer.error_recovery_level = rng.pick(&[1, 2, 2, 2, 2]);
            initiator.offer.default_time2wait_s = rng.pick(&[0, 0, 2]);
            initiator.offer.default_time2retain_s = rng.pick(&[5, 20, 60]);
            if initiator.offer.error_recovery_level == 2 {
                // Which tasks a function ends that comes while they move is a matter of the drivers.
                initiator.mix.reset = 0;
            }
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

    /// The same with writes that are long enough to land.
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
        self.target.lost_per_mille = rng.pick(&[0, 2, 5, 10]);
        for initiator in &mut self.initiators {
            initiator.offer.error_recovery_level = rng.pick(&[0, 1, 1, 1]);
            initiator.lost_per_mille = rng.pick(&[0, 2, 5, 10]);
        }
    }

    /// The same over iSER: CRCs stand for digests, a session has one connection.
    fn over_rdma(&mut self, rng: &mut Rng, crc: bool) {
        let mut setup = |receives: u32| Setup {
            crc,
            markers: rng.chance(300),
            depth: rng.pick(&[1, 2, 8, 128]),
            max_fpdu: rng.pick(&[160, 256, 1460, 65_536]),
            receives,
            receive_size: (::iser::HEAD_LEN + iscsi::pdu::ahs::MAX_LEN) as u32 + crate::iser::SEGMENT,
            seed: [0; 16],
        };
        // A window of commands, and what comes beside it.
        self.target.iser = Some(setup(self.target.queue_depth + 64));
        self.target.connections = 1;
        for initiator in &mut self.initiators {
            initiator.iser = Some(setup(2 * initiator.depth as u32 + 64));
            initiator.connections = 1;
            initiator.offer = Offer {
                target_recv_data_segment_length: crate::iser::SEGMENT,
                initiator_recv_data_segment_length: crate::iser::SEGMENT,
                ..initiator.offer.clone()
            }
            .over_rdma();
        }
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
