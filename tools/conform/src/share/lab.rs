//! The context of a check of NFS: addresses, time, and the directory to work in.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use nfs::{mount, v3, v4};
use rpc::bind;
use runtime::Runtime;

use super::conn::{Conn, Number};
use super::options::ShareOptions;
use crate::finding::{Finding, Verdict, not_applicable, untested};

/// The context of a check.
pub(crate) struct Lab {
    pub options: ShareOptions,
    addresses: Vec<SocketAddr>,
    /// The ring of the queue pairs, over RDMA.
    rdma: Option<Rc<Runtime>>,
    deadline: Cell<Instant>,
    names: Cell<u32>,
    random: u32,
    /// The export's handle in version 3, or why there is none.
    pub three: Result<Vec<u8>, Finding>,
    /// The minor version of version 4, or why there is none.
    pub four: Result<u32, Finding>,
}

impl Lab {
    pub fn new(options: ShareOptions, addresses: Vec<SocketAddr>, rdma: Option<Rc<Runtime>>) -> Self {
        let mut random = [0; 4];
        // Without randomness the names repeat between runs. Making the directory then fails.
        let _ = runtime::random(&mut random);
        let never = Finding::NotApplicable("the URL names another version".to_owned());
        Self {
            options,
            addresses,
            rdma,
            deadline: Cell::new(runtime::clock()),
            names: Cell::new(0),
            random: u32::from_be_bytes(random),
            three: Err(never.clone()),
            four: Err(never),
        }
    }

    /// Starts a check's time.
    pub fn begin(&self) {
        self.deadline.set(runtime::clock() + self.options.check_within);
    }

    /// Whether the time has passed.
    pub fn is_over(&self) -> bool {
        runtime::clock() >= self.deadline.get()
    }

    /// A number that no other part of this run has.
    pub fn number(&self) -> u32 {
        self.names.set(self.names.get() + 1);
        self.names.get()
    }

    /// The name of the directory that the run works in.
    pub fn place(&self) -> String {
        format!(".stag-conform-{:08x}", self.random)
    }

    /// The name of a client, different in each run.
    pub fn client(&self, name: &str) -> Vec<u8> {
        format!("stag conform {:08x} {name}", self.random).into_bytes()
    }

    /// User and group of the calls.
    pub fn ids(&self) -> (u32, u32) {
        (self.options.uid, self.options.gid)
    }

    /// A user without a relation to the usual one, and without rights.
    pub(crate) fn other_ids(&self) -> (u32, u32) {
        match self.ids() {
            (54321, _) | (_, 54321) => (54322, 54322),
            _ => (54321, 54321),
        }
    }

    /// A new connection to a port of the server, over TCP.
    pub(crate) fn connect_to(&self, port: u16) -> Verdict<Conn> {
        self.connect_over(None, port)
    }

    fn connect_over(&self, rdma: Option<&Rc<Runtime>>, port: u16) -> Verdict<Conn> {
        let left = self.deadline.get().saturating_duration_since(runtime::clock());
        let limit = self.options.answer_within.min(left).max(Duration::from_millis(1));
        let addresses: Vec<_> = self.addresses.iter().map(|to| SocketAddr::new(to.ip(), port)).collect();
        Conn::connect(&addresses, rdma, limit, self.ids()).or_else(|lost| untested(lost.seen()))
    }

    /// A new connection to NFS.
    pub fn connect(&self) -> Verdict<Conn> {
        self.connect_over(self.rdma.as_ref(), self.options.port)
    }

    /// A new connection to NFS whose calls are records (RFC 5531 §11).
    pub fn records(&self) -> Verdict<Conn> {
        match self.rdma {
            Some(_) => not_applicable("RPC over RDMA has no records"),
            None => self.connect(),
        }
    }

    /// The program that checks of RPC call: the first version that the server has.
    pub fn program(&self) -> Number {
        let version = if self.three.is_ok() { v3::VERSION } else { v4::VERSION };
        (v3::PROGRAM, version, 0)
    }

    /// A connection to a program that has another port, or the one of NFS.
    pub fn service(&self, program: u32, version: u32) -> Verdict<Conn> {
        let mut conn = self.connect()?;
        if conn.call((program, version, 0), &[]).is_ok_and(|answer| answer.body().is_ok()) {
            return Ok(conn);
        }
        let mut portmapper = self.connect_to(bind::PORT)?;
        let mapping = bind::Mapping { program, version, protocol: bind::TCP, port: 0 };
        let number = (bind::PROGRAM, bind::v2::VERSION, bind::v2::Procedure::GetPort.code());
        let answer = portmapper.call(number, &rpc::xdr::encode(&mapping))?;
        let port = answer.body()?.first_chunk().map_or(0, |port| u32::from_be_bytes(*port));
        match u16::try_from(port).ok().filter(|port| *port != 0) {
            Some(port) => self.connect_to(port),
            None => untested(format!("the portmapper knows no program {program} of version {version}")),
        }
    }

    /// A connection to MOUNT.
    pub fn mount(&self) -> Verdict<Conn> {
        self.service(mount::PROGRAM, mount::VERSION)
    }

    /// A connection to the portmapper: that of the host, or one at the port of NFS.
    pub fn portmapper(&self) -> Verdict<Conn> {
        let null = (bind::PROGRAM, bind::v2::VERSION, 0);
        for port in [self.options.port, bind::PORT] {
            if let Ok(mut conn) = self.connect_to(port)
                && conn.call(null, &[]).is_ok_and(|answer| answer.body().is_ok())
            {
                return Ok(conn);
            }
        }
        not_applicable("no portmapper answers")
    }
}
