//! Settings' values that are words: of which each type has, and what each means.

use backing::engine::Engine;
use backing::spec::CacheMode;
use iscsi::chap::Hash;
use iscsi_server::config::{Crc, Transports};
use nfs_server::config::{Network, Squash};
use scsi::data::target_port_groups::AccessState;

use super::settings::Setting;
use super::value::{Misfit, Value, word_values};
use crate::identity::Choice;
use crate::log;

word_values! {
    Crc as CRCS {
        "never" = Crc::Never, "no CRC unless the initiator asks for it";
        "prefer" = Crc::Prefer, "as the initiator asks";
        "require" = Crc::Require, "always";
    }
    Transports as TRANSPORTS {
        "any" = Transports::All, "iSCSI over TCP and iSER over iWARP; the first bytes of a connection tell which";
        "tcp" = Transports::Tcp, "iSCSI over TCP";
        "iser" = Transports::Iser, "iSER over iWARP";
        "verbs" = Transports::Verbs, "iSER through the RDMA devices that have the address";
    }
    runtime::Backend as RUNTIMES {
        "auto" = runtime::Backend::Auto, "io_uring, or epoll where the system forbids or lacks it";
        "io_uring" = runtime::Backend::IoUring, "io_uring only";
        "epoll" = runtime::Backend::Epoll, "epoll, and threads for files";
    }
    log::Format as LOG_FORMATS {
        "text" = log::Format::Text, "time, level, source, message, fields";
        "json" = log::Format::Json, "one JSON object a line";
        "journald" = log::Format::Journald, "text with the priority for systemd's journal; the default where stderr is the journal";
    }
    Choice as IDENTITIES {
        "own" = Choice::Own, "random, made once, kept with the medium";
        "derived" = Choice::Derived, "made from the path, or from target and number of memory: the same on every machine";
    }
    CacheMode as CACHES {
        "writeback" = CacheMode::WriteBack, "data reaches the medium on SYNCHRONIZE CACHE and FUA (WCE=1); the default of files";
        "writethrough" = CacheMode::WriteThrough, "data is on the medium before a write is acknowledged (WCE=0)";
        "direct" = CacheMode::Direct, "past the kernel's cache (O_DIRECT); the default of block devices";
    }
    Engine as ENGINES {
        "uring" = Engine::Uring, "io_uring";
        "fixed" = Engine::Fixed, "io_uring with registered buffers; the default with cache=direct";
        "inline" = Engine::Inline, "at once what the kernel's cache has, the rest by io_uring";
        "mmap" = Engine::Mmap, "what the kernel's cache has from a mapping of the file, the rest by io_uring";
        "sendpage" = Engine::Sendpage, "the same, sent without a copy; the default without cache=direct";
        "threads" = Engine::Threads, "blocking calls on threads of the core";
        "sync" = Engine::Sync, "blocking calls on the connection's core, each write durable (implies cache=writethrough)";
    }
    Hash as HASHES {
        "sha3-256" = Hash::Sha3_256, "SHA3-256";
        "sha256" = Hash::Sha256, "SHA-256";
        "sha1" = Hash::Sha1, "SHA-1";
        "md5" = Hash::Md5, "MD5, the one that every initiator has";
    }
    Squash as SQUASHES {
        "root" = Squash::Root, "the super-user's";
        "all" = Squash::All, "everybody's";
        "none" = Squash::None, "nobody's: who is root on a client is root here";
    }
    AccessState as STATES {
        "active/optimized" = AccessState::ActiveOptimized, "preferred path";
        "active/non-optimized" = AccessState::ActiveNonOptimized, "works, perhaps slower";
        "standby" = AccessState::Standby, "no access to the medium until the state changes";
        "unavailable" = AccessState::Unavailable, "no access";
        "offline" = AccessState::Offline, "the ports are not there";
    }
}

impl Value for log::Filter {
    fn parse(text: &str, setting: &Setting) -> Result<Self, Misfit> {
        let misfit = |what| Misfit { what: Some(what), ..Misfit::new(setting, text) };
        log::check(text).map(|()| Self(text.to_owned())).map_err(misfit)
    }

    fn show(&self) -> Option<String> {
        Some(self.0.clone())
    }
}

impl Value for Network {
    fn parse(text: &str, _: &Setting) -> Result<Self, Misfit> {
        let instead = || "write \"192.0.2.0/24\", \"2001:db8::/32\", an address, or \"*\" for all".to_owned();
        text.parse().map_err(|_| Misfit { what: Some(format!("`{text}` is no network")), instead: instead() })
    }

    fn show(&self) -> Option<String> {
        Some(self.to_string())
    }
}
