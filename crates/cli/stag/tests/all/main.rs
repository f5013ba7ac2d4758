//! The daemon and the other commands as processes, and the rules that hold for all sources.

mod access;
#[cfg(feature = "http")]
mod api;
mod circles;
mod cli;
mod control;
#[cfg(feature = "http")]
mod dashboard;
mod doctor;
mod documents;
mod durability;
mod floors;
#[cfg(feature = "http")]
mod http;
mod identity;
mod iser;
#[cfg(feature = "lab")]
mod lab_link;
mod loads;
mod managed;
mod media;
mod mistakes;
mod osd;
mod output;
mod proofs;
mod sandbox;
mod secrets;
mod start;
mod support;
mod tune;
