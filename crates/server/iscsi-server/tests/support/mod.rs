//! A blocking initiator for tests: it sends the PDUs that a test makes and returns the answers.

#[allow(dead_code, reason = "not every test uses it")]
pub mod iser;
#[allow(dead_code, reason = "not every test uses it")]
pub mod wire;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use backing::MemoryStore;
use disk::unit::{DiskOptions, DiskUnit, Registry};
use iscsi::keys::Offer;
use iscsi::login::initiator::{Config, Established, InitiatorLogin, Step};
use iscsi::pdu::ahs::{Ahs, MAX_LEN};
use iscsi::pdu::{Bhs, Isid, Lun, NopOut, Opcode, RESERVED_TAG, ScsiCommand, TaskAttribute};
use iscsi::stream::{self, Assembler};
use iscsi_server::config::{Auth, Limits, LunConfig, Portal, ServerConfig, TargetConfig};
use iscsi_server::{CoresConfig, Server, Unit};

pub const IQN: &str = "iqn.2026-01.org.example:test";
pub const BLOCKS: usize = 8192;
/// Longest wait for an answer, even on a machine that is busy or stands still for a while. The
/// server sends no ping before: that would hide a lost wake-up.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A server with one memory disk of 4 MiB under LUN 0 and another under LUN 3.
pub fn server(change: impl FnOnce(&mut ServerConfig)) -> Server {
    server_on(CORES, change)
}

/// [`server`] on other cores.
pub fn server_on(cores: CoresConfig, change: impl FnOnce(&mut ServerConfig)) -> Server {
    let mut config = config();
    change(&mut config);
    Server::start(cores, config).expect("the server starts")
}

/// Cores of [`server`].
pub const CORES: CoresConfig = CoresConfig { count: 2, spin_us: 0, pool_bytes: 64 << 20 };

/// One core.
pub const ONE: CoresConfig = CoresConfig { count: 1, ..CORES };

/// A memory disk of 4 MiB.
pub fn unit(name: &str) -> Unit {
    let store = Arc::new(MemoryStore::new(BLOCKS as u64 * 512, false).expect("memory"));
    let options = DiskOptions::default().with_identity(name);
    Unit::Disk(DiskUnit::new(store, options, &Registry::new()).expect("a disk"))
}

/// Configuration of [`server`].
pub fn config() -> ServerConfig {
    ServerConfig {
        portals: vec![Portal {
            listen: "127.0.0.1:0".parse().expect("an address"),
            group: 1,
            transports: Default::default(),
        }],
        targets: vec![TargetConfig {
            name: IQN.into(),
            alias: "test".into(),
            groups: vec![],
            auth: Auth::None,
            units: vec![
                LunConfig { lun: 0, unit: unit("a"), limiter: Default::default(), stages: false },
                LunConfig { lun: 3, unit: unit("b"), limiter: Default::default(), stages: false },
            ],
            acls: None,
            redirect: None,
            ports: None,
            elsewhere: Vec::new(),
        }],
        discovery_auth: Auth::None,
        // Practically no time limits: most tests concern something else, and do not answer pings.
        limits: Limits {
            login_timeout: 10 * PATIENCE,
            nop_interval: 10 * PATIENCE,
            nop_timeout: 10 * PATIENCE,
            ..Limits::default()
        },
        zero_copy: true,
        iser: Default::default(),
    }
}

pub fn address(server: &Server) -> SocketAddr {
    server.portals()[0].address
}

/// Number of blocks of `new` that the medium shows while they are placed. Of blocks placed at that
/// moment it may show a part.
pub fn blocks_seen(now: &[u8], new: &[u8]) -> usize {
    now.chunks(512).zip(new.chunks(512)).filter(|(now, new)| now == new).count()
}

/// Number of blocks of `new` on the medium, after the last has been placed; all others are
/// unchanged.
pub fn blocks_written(now: &[u8], old: &[u8], new: &[u8]) -> usize {
    let blocks = now.chunks(512).zip(old.chunks(512)).zip(new.chunks(512));
    blocks
        .map(|((now, old), new)| {
            assert!(now == old || now == new, "a block that is neither old nor new");
            usize::from(now == new)
        })
        .sum()
}

/// A received PDU.
pub struct Pdu {
    pub bhs: Bhs,
    pub data: Vec<u8>,
}

/// One connection of an initiator.
pub struct Client {
    pub stream: TcpStream,
    pdus: Assembler,
    pub session: Option<Established>,
    pub cmd_sn: u32,
    itt: u32,
    /// Whether its requests acknowledge statuses. Otherwise ExpStatSN is 0.
    pub acknowledges: bool,
    /// The StatSN that it expects next.
    pub exp_stat_sn: u32,
}

impl Client {
    /// Only connects.
    pub fn connect(to: SocketAddr) -> Self {
        let stream = TcpStream::connect(to).expect("the portal listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
        let limits = stream::Limits { max_data_segment: 1 << 24, ..stream::Limits::LOGIN };
        Self {
            stream,
            pdus: Assembler::new(limits),
            session: None,
            cmd_sn: 1,
            itt: 100,
            acknowledges: false,
            exp_stat_sn: 0,
        }
    }

    /// Parameters of a login as initiator `number`.
    pub fn config(number: u8) -> Config {
        Config {
            initiator: format!("iqn.2026-01.org.example:client{number}"),
            target: Some(IQN.into()),
            isid: Isid([0x80, 0, 0, number, 0, 0]),
            cmd_sn: 1,
            alias: None,
            tsih: 0,
            cid: 0,
            itt: 1,
            chap: None,
            offer: Offer::default(),
            session: None,
            skip_security: true,
        }
    }

    /// Connects and logs in.
    pub fn login(to: SocketAddr, config: Config) -> Self {
        let mut client = Self::connect(to);
        client.log_in(config).expect("the login succeeds");
        client
    }

    /// Logs in, or returns the error.
    pub fn log_in(&mut self, config: Config) -> Result<(), String> {
        let mut login = InitiatorLogin::new(config);
        let mut request = login.start();
        loop {
            self.send(request.header.into(), &request.data);
            let reply = self.receive().ok_or("the target closed the connection")?;
            match login.handle(reply.bhs.as_login_response(), &reply.data).map_err(|e| e.to_string())? {
                Step::Send(next) => request = next,
                Step::Done(established) => {
                    self.cmd_sn = established.exp_cmd_sn;
                    let digests = established.params.digests();
                    self.pdus.set_limits(stream::Limits { digests, ..*self.pdus.limits() });
                    self.session = Some(*established);
                    return Ok(());
                }
                other => return Err(format!("{other:?}")),
            }
        }
    }

    /// Whether the portal takes the login. One that it closes instead is none.
    pub fn log_in_if_taken(&mut self) -> bool {
        self.log_in(Self::config(1)).is_ok()
    }

    /// Sends one PDU.
    pub fn send(&mut self, bhs: Bhs, data: &[u8]) {
        let bytes = self.bytes(bhs, data);
        self.stream.write_all(&bytes).expect("the target reads");
    }

    /// Bytes of one PDU.
    pub fn bytes(&self, mut bhs: Bhs, data: &[u8]) -> Vec<u8> {
        bhs.set_data_segment_len(data.len());
        if self.acknowledges {
            // ExpStatSN has its place in every request (RFC 7143 §11).
            bhs.specific_20[8..12].copy_from_slice(&self.exp_stat_sn.to_be_bytes());
        }
        let mut bytes = bhs.bytes().to_vec();
        if self.pdus.limits().digests.header {
            bytes.extend_from_slice(&iscsi::digest::header(bhs.bytes(), &[]));
        }
        bytes.extend_from_slice(data);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        if self.pdus.limits().digests.data && !data.is_empty() {
            bytes.extend_from_slice(&iscsi::digest::data(data));
        }
        bytes
    }

    /// The next PDU; `None` when the target has closed the connection.
    pub fn receive(&mut self) -> Option<Pdu> {
        loop {
            if let Some(pdu) = self.pdus.next_pdu().expect("well-formed PDUs") {
                let pdu = Pdu { bhs: pdu.bhs, data: pdu.data };
                let has_status = match pdu.bhs.opcode() {
                    Some(Opcode::DataIn) => pdu.bhs.as_data_in().has_status(),
                    Some(Opcode::NopIn) => pdu.bhs.itt() != RESERVED_TAG,
                    Some(Opcode::ReadyToTransfer) | None => false,
                    Some(_) => true,
                };
                if let (true, [a, b, c, d, ..]) = (has_status, &pdu.bhs.specific_20[4..]) {
                    self.exp_stat_sn = u32::from_be_bytes([*a, *b, *c, *d]).wrapping_add(1);
                }
                return Some(pdu);
            }
            let mut piece = [0; 65536];
            match self.stream.read(&mut piece) {
                Ok(0) => return None,
                Ok(n) => self.pdus.push(&piece[..n]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => panic!("nothing came: {error}"),
            }
        }
    }

    /// Answers a ping of the target.
    pub fn pong(&mut self, ping: &Pdu) {
        let nop = *ping.bhs.as_nop_in();
        let mut answer = NopOut::answer(nop.ttt.get(), nop.lun);
        answer.as_bhs_mut().set_immediate(true);
        answer.cmd_sn.set(self.cmd_sn);
        self.send(answer.into(), &[]);
    }

    /// The next PDU except pings, which it answers.
    pub fn receive_answer(&mut self) -> Pdu {
        let began = Instant::now();
        loop {
            let pdu = self.receive().expect("an answer");
            if pdu.bhs.opcode() != Some(Opcode::NopIn) {
                return pdu;
            }
            if pdu.bhs.as_nop_in().ttt.get() != RESERVED_TAG {
                self.pong(&pdu);
            }
            assert!(began.elapsed() < PATIENCE, "only pings come");
        }
    }

    /// A fresh Initiator Task Tag.
    pub fn tag(&mut self) -> u32 {
        self.itt += 1;
        self.itt
    }

    /// A numbered command for `lun`, not sent yet.
    pub fn command(&mut self, lun: u16, cdb: &[u8]) -> ScsiCommand {
        let itt = self.tag();
        let lun = Lun::new(lun).expect("a small number");
        let mut command = ScsiCommand::new(itt, lun, TaskAttribute::Simple, cdb);
        command.cmd_sn.set(self.cmd_sn);
        self.cmd_sn = self.cmd_sn.wrapping_add(1);
        command
    }

    /// Bytes and tag of a numbered command for `lun` with a CDB of more than 16 bytes. `expected`
    /// bytes of data-out belong to it, and none of them come with it.
    pub fn long_command(&mut self, lun: u16, cdb: &[u8], expected: usize) -> (Vec<u8>, u32) {
        let mut request = self.command(lun, &cdb[..16]);
        request.set_write(expected > 0);
        request.edtl.set(expected as u32);
        let mut ahs = ArrayVec::<u8, MAX_LEN>::new();
        assert!(Ahs::ExtendedCdb(&cdb[16..]).emit(&mut ahs));
        let itt = request.itt.get();
        let mut bhs = Bhs::from(request);
        bhs.set_total_ahs_len(ahs.len());
        ([bhs.bytes(), &ahs[..]].concat(), itt)
    }

    /// Runs a command that reads; returns its status and its data.
    pub fn read(&mut self, lun: u16, cdb: &[u8], len: u32) -> (u8, Vec<u8>) {
        let mut command = self.command(lun, cdb);
        command.set_read(true);
        command.edtl.set(len);
        self.send(command.into(), &[]);
        self.finish()
    }

    /// Runs a command that writes; returns its status, and its sense data if it has any.
    pub fn write(&mut self, lun: u16, cdb: &[u8], data: &[u8]) -> (u8, Vec<u8>) {
        let mut command = self.command(lun, cdb);
        command.set_write(true);
        command.edtl.set(data.len() as u32);
        let itt = command.itt.get();
        let first = self.session.as_ref().map_or(8192, |s| s.params.first_burst_length as usize);
        let first = first.min(8192).min(data.len());
        self.send(command.into(), &data[..first]);
        loop {
            let pdu = self.receive_answer();
            if pdu.bhs.opcode() != Some(iscsi::pdu::Opcode::ReadyToTransfer) {
                return status(&pdu);
            }
            let r2t = *pdu.bhs.as_ready_to_transfer();
            let (start, len) = (r2t.buffer_offset.get() as usize, r2t.desired_length.get() as usize);
            for (sn, at) in (0..).zip((start..start + len).step_by(65536)) {
                let end = (at + 65536).min(start + len);
                let mut out = iscsi::pdu::DataOut::new(itt, r2t.ttt.get(), r2t.lun, sn, at as u32);
                out.set_final(end == start + len);
                self.send(out.into(), &data[at..end]);
            }
        }
    }

    /// Takes in a command's data and status.
    pub fn finish(&mut self) -> (u8, Vec<u8>) {
        let mut all = Vec::new();
        loop {
            let pdu = self.receive_answer();
            match pdu.bhs.opcode() {
                Some(iscsi::pdu::Opcode::DataIn) => {
                    let header = *pdu.bhs.as_data_in();
                    assert_eq!(header.buffer_offset.get() as usize, all.len());
                    all.extend(pdu.data);
                    if header.has_status() {
                        return (header.status, all);
                    }
                }
                _ => {
                    let (status, sense) = status(&pdu);
                    return (status, if status == 0 { all } else { sense });
                }
            }
        }
    }

    /// Takes the unit attention that a new session finds.
    pub fn settle(&mut self, lun: u16) {
        while self.read(lun, &[0; 6], 0).0 != 0 {}
    }
}

/// Status and sense data of a SCSI Response.
pub fn status(pdu: &Pdu) -> (u8, Vec<u8>) {
    assert_eq!(pdu.bhs.opcode(), Some(iscsi::pdu::Opcode::ScsiResponse), "{}", pdu.bhs);
    (pdu.bhs.as_scsi_response().status, pdu.data.get(2..).unwrap_or_default().to_vec())
}

pub fn read10(lba: u32, blocks: u16) -> [u8; 10] {
    rw10(0x28, lba, blocks)
}

pub fn write10(lba: u32, blocks: u16) -> [u8; 10] {
    rw10(0x2a, lba, blocks)
}

fn rw10(opcode: u8, lba: u32, blocks: u16) -> [u8; 10] {
    let mut cdb = [0; 10];
    cdb[0] = opcode;
    cdb[2..6].copy_from_slice(&lba.to_be_bytes());
    cdb[7..9].copy_from_slice(&blocks.to_be_bytes());
    cdb
}
