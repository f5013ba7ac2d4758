//! Code that the fuzz targets run: one function for each parser and state machine that reads input
//! of a peer or a user, and its seeds. The functions check properties where there are any, and
//! panic when one does not hold.
//!
//! `fuzz/fuzz_targets` gives them to libFuzzer; `tests/replay.rs` gives them every seed and
//! mutations of it on the stable toolchain. `cargo run -p stag-fuzz-entry` writes the seeds to
//! `fuzz/corpus`.
#![forbid(unsafe_code)]

pub mod chap;
pub mod cluster;
pub mod connection;
#[cfg(feature = "config")]
pub mod control;
pub mod device_data;
pub mod fpdus;
pub mod input;
pub mod iser;
pub mod isns;
pub mod iwarp;
pub mod login;
pub mod mutate;
pub mod nbd;
pub mod negotiation;
pub mod nfs;
pub mod nfs4;
pub mod osd;
pub mod osd_unit;
pub mod parameters;
pub mod pdu;
pub mod peer_link;
pub mod rdma_stream;
pub mod recovery;
pub mod reservation;
pub mod rpc;
pub mod rpcrdma;
pub mod scsi;
pub mod served;
pub mod session;
pub mod store;
pub mod text;
pub mod unit;
pub mod user;

use input::Seed;

/// A fuzz target: its name, its function, and its named seeds.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name, and that of its file and of its corpus.
    pub name: &'static str,
    /// Runs one input. A panic is a finding.
    pub run: fn(&[u8]),
    /// Inputs made by hand that reach deep.
    pub seeds: fn() -> Vec<(&'static str, Seed)>,
}

/// All fuzz targets.
pub const TARGETS: &[Target] = &[
    Target { name: "pdu_cut", run: pdu::cut, seeds: pdu::cut_seeds },
    Target { name: "pdu_fields", run: pdu::fields, seeds: pdu::fields_seeds },
    Target { name: "text_keys", run: text::keys, seeds: text::keys_seeds },
    Target { name: "negotiation", run: negotiation::run, seeds: negotiation::seeds },
    Target { name: "discovery", run: text::discovery, seeds: text::discovery_seeds },
    Target { name: "login_target", run: login::target, seeds: login::target_seeds },
    Target { name: "login_initiator", run: login::initiator, seeds: login::initiator_seeds },
    Target { name: "login_pair", run: login::pair, seeds: login::pair_seeds },
    Target { name: "target_connection", run: connection::run, seeds: connection::seeds },
    Target { name: "target_rdma", run: connection::run_rdma, seeds: connection::rdma_seeds },
    Target { name: "target_recovery", run: recovery::run, seeds: recovery::seeds },
    Target { name: "initiator_session", run: session::run, seeds: session::seeds },
    Target { name: "chap", run: chap::run, seeds: chap::seeds },
    Target { name: "cdb", run: scsi::cdb, seeds: scsi::cdb_seeds },
    Target { name: "sense", run: scsi::sense, seeds: scsi::sense_seeds },
    Target { name: "device_data", run: device_data::run, seeds: device_data::seeds },
    Target { name: "mode_select", run: parameters::mode_select, seeds: parameters::mode_select_seeds },
    Target { name: "parameter_lists", run: parameters::lists, seeds: parameters::lists_seeds },
    Target { name: "copy_list", run: scsi::copy_list, seeds: scsi::copy_list_seeds },
    Target { name: "copy_list_lid4", run: scsi::copy_list_lid4, seeds: scsi::copy_list_lid4_seeds },
    Target { name: "rod_tokens", run: scsi::rod_tokens, seeds: scsi::rod_tokens_seeds },
    Target { name: "reservation_out", run: reservation::out, seeds: reservation::out_seeds },
    Target { name: "cluster_record", run: cluster::record, seeds: cluster::record_seeds },
    Target { name: "peer_link_handshake", run: peer_link::handshake, seeds: peer_link::handshake_seeds },
    Target { name: "peer_link_frames", run: peer_link::frames, seeds: peer_link::frames_seeds },
    Target { name: "disk_unit", run: unit::run, seeds: unit::seeds },
    #[cfg(feature = "config")]
    Target { name: "config", run: user::config, seeds: user::config_seeds },
    #[cfg(feature = "config")]
    Target { name: "control_requests", run: control::requests, seeds: control::requests_seeds },
    #[cfg(feature = "config")]
    Target { name: "takeover", run: control::takeover, seeds: control::takeover_seeds },
    Target { name: "url", run: user::url, seeds: user::url_seeds },
    Target { name: "reservation_saved", run: reservation::saved, seeds: reservation::saved_seeds },
    Target { name: "iser_message", run: iser::message, seeds: iser::message_seeds },
    Target { name: "isns_message", run: isns::message, seeds: isns::message_seeds },
    Target { name: "nbd_handshake", run: nbd::handshake, seeds: nbd::handshake_seeds },
    Target { name: "nbd_replies", run: nbd::replies, seeds: nbd::replies_seeds },
    Target { name: "rpc_records", run: rpc::records, seeds: rpc::records_seeds },
    Target { name: "rpc_message", run: rpc::message, seeds: rpc::message_seeds },
    Target { name: "rpcrdma_header", run: rpcrdma::header, seeds: rpcrdma::header_seeds },
    Target { name: "nfs3_arguments", run: nfs::arguments, seeds: nfs::arguments_seeds },
    Target { name: "nfs3_results", run: nfs::results, seeds: nfs::results_seeds },
    Target { name: "nfs4_arguments", run: nfs4::arguments, seeds: nfs4::arguments_seeds },
    Target { name: "nfs4_results", run: nfs4::results, seeds: nfs4::results_seeds },
    Target { name: "nfs4_attributes", run: nfs4::attributes, seeds: nfs4::attributes_seeds },
    Target { name: "iwarp_startup", run: iwarp::startup, seeds: iwarp::startup_seeds },
    Target { name: "iwarp_stream", run: iwarp::stream, seeds: iwarp::stream_seeds },
    Target { name: "iwarp_segments", run: iwarp::segments, seeds: iwarp::segments_seeds },
    Target { name: "iwarp_pair", run: iwarp::pair, seeds: iwarp::pair_seeds },
    Target { name: "rdma_stream", run: rdma_stream::run, seeds: rdma_stream::seeds },
    Target { name: "osd_cdb", run: osd::cdb, seeds: osd::cdb_seeds },
    Target { name: "osd_lists", run: osd::lists, seeds: osd::lists_seeds },
    Target { name: "osd_continuation", run: osd::continuation, seeds: osd::continuation_seeds },
    Target { name: "osd_data", run: osd::data, seeds: osd::data_seeds },
    Target { name: "osd_unit", run: osd_unit::run, seeds: osd_unit::seeds },
    Target { name: "object_store", run: store::run, seeds: store::seeds },
];

/// The target of this name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
