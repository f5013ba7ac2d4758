//! Runs a negotiation by the key table: answers the peer's offers, accepts the answers to ours, and
//! refuses violations of RFC 7143 §6. Names, security keys and `SendTargets` are handled before, by
//! [`crate::login`] and [`crate::discovery`].

use super::{IrrelevantWhen, Key, KeySet, Kind, Offer, Params, Senders, Use};
use crate::keys::params::{Digest, DigestChoice, TaskReporting};
use crate::text::{self, Pair, TextBuf};

/// Our side of the negotiation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The initiator.
    Initiator,
    /// The target.
    Target,
}

/// The phase of the negotiation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Login of a normal session's leading connection.
    Leading,
    /// Login of a further connection of a session.
    Further,
    /// Login of a discovery session.
    Discovery,
    /// Text Requests in the full feature phase.
    FullFeature,
}

/// Why a negotiation fails. During login it is an initiator error (0x0200), in the full feature
/// phase a reject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NegotiationError {
    /// The peer sent a key twice (RFC 7143 §6.3).
    #[error("{} was sent twice", .0.name())]
    Repeated(Key),
    /// The peer's answer to our offer is invalid.
    #[error("{} was answered with a value that was not offered", .0.name())]
    BadAnswer(Key),
    /// The peer refuses a value that we require.
    #[error("{} is required and was not agreed on", .0.name())]
    Required(Key),
}

/// One negotiation: a login, or one exchange of Text Requests.
#[derive(Debug, Clone)]
pub struct Negotiator {
    role: Role,
    phase: Phase,
    offer: Offer,
    params: Params,
    /// Keys that the peer originated.
    received: KeySet,
    /// Keys that we originated: they must not be sent again.
    sent: KeySet,
    /// Keys that we originated, without an answer so far.
    unanswered: KeySet,
}

const REJECT: &str = "Reject";
/// Accepted as an answer, never sent: a peer that expects a number or a boolean cannot parse it.
const IRRELEVANT: &str = "Irrelevant";
const NOT_UNDERSTOOD: &str = "NotUnderstood";

impl Negotiator {
    /// Begins with `params`: the defaults, or the session's current values.
    pub fn new(role: Role, phase: Phase, offer: Offer, params: Params) -> Self {
        let (received, sent, unanswered) = Default::default();
        Negotiator { role, phase, offer, params, received, sent, unanswered }
    }

    /// The results so far.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// Whether an answer of the peer is outstanding.
    pub fn is_waiting(&self) -> bool {
        !self.unanswered.is_empty()
    }

    /// Handles a whole text and writes the answers. Keys whose relevance depends on others are
    /// handled after those. `RDMAExtensions`, on which many depend, is handled first.
    ///
    /// # Errors
    /// Any [`NegotiationError`] ends the negotiation.
    pub fn receive(&mut self, pairs: &[Pair<'_>], out: &mut TextBuf) -> Result<(), NegotiationError> {
        let depends = |pair: &Pair<'_>| {
            let irrelevant = Key::from_name(pair.key).map(|k| k.spec().irrelevant);
            matches!(irrelevant, Some(IrrelevantWhen::NoUnsolicitedData | IrrelevantWhen::NoRdma))
        };
        let decides = |pair: &Pair<'_>| pair.key == Key::RDMAExtensions.name();
        for pair in pairs.iter().filter(|p| decides(p)) {
            self.receive_one(pair, out)?;
        }
        for pair in pairs.iter().filter(|p| !depends(p) && !decides(p)) {
            self.receive_one(pair, out)?;
        }
        for pair in pairs.iter().filter(|p| depends(p)) {
            self.receive_one(pair, out)?;
        }
        if self.role == Role::Target && self.params.rdma_extensions {
            self.declare_iser(out);
        }
        Ok(())
    }

    /// Writes a target's own declarations of RFC 7145 if the initiator sent some itself. Other
    /// initiators may end the login at an unknown key, as open-iscsi does.
    fn declare_iser(&mut self, out: &mut TextBuf) {
        use Key::{
            ISERHelloRequired, MaxAHSLength, MaxOutstandingUnexpectedPDUs, TaggedBufferForSolicitedDataOnly,
        };
        let known =
            [MaxOutstandingUnexpectedPDUs, MaxAHSLength, ISERHelloRequired, TaggedBufferForSolicitedDataOnly];
        if known.into_iter().any(|key| self.received.contains(key)) {
            self.originate_iser_declarations(out);
        }
    }

    /// Originates declarations that differ from the defaults.
    fn originate_iser_declarations(&mut self, out: &mut TextBuf) {
        if self.offer.max_outstanding_unexpected_pdus != 0 {
            self.originate(Key::MaxOutstandingUnexpectedPDUs, out);
        }
        if self.offer.max_ahs_length != 256 {
            self.originate(Key::MaxAHSLength, out);
        }
        if self.offer.iser_hello_required {
            self.originate(Key::ISERHelloRequired, out);
        }
    }

    fn receive_one(&mut self, pair: &Pair<'_>, out: &mut TextBuf) -> Result<(), NegotiationError> {
        let refusal = [REJECT, IRRELEVANT, NOT_UNDERSTOOD].contains(&pair.value);
        let Some(key) = Key::from_name(pair.key) else {
            if !refusal {
                out.put(pair.key, NOT_UNDERSTOOD);
            }
            return Ok(());
        };
        if self.unanswered.remove(key) {
            return if refusal { self.check_required(key) } else { self.take_answer(key, pair.value) };
        }
        if refusal {
            // A refusal of a declaration, or of a key never sent, needs no decision.
            return Ok(());
        }
        if !key.may_repeat() && (!self.received.insert(key) || self.sent.contains(key) && !is_declared(key)) {
            return Err(NegotiationError::Repeated(key));
        }
        let peer = if self.role == Role::Target { Role::Initiator } else { Role::Target };
        if self.is_forbidden(key, peer) {
            out.put(key.name(), REJECT);
            return Ok(());
        }
        // An irrelevant negotiated key gets its normal result, though RFC 7143 §6.2 allows
        // "Irrelevant" too. Every peer can parse the result, and nothing depends on it.
        if !(is_declared(key) && self.is_irrelevant(key)) {
            self.answer(key, pair.value, out);
        }
        Ok(())
    }

    /// Whether the sender or the phase forbids the key (RFC 7143 §13).
    fn is_forbidden(&self, key: Key, sender: Role) -> bool {
        let spec = key.spec();
        let sender_ok = match spec.senders {
            Senders::Both => true,
            Senders::Initiator => sender == Role::Initiator,
            Senders::Target => sender == Role::Target,
        };
        let time_ok = match spec.use_ {
            Use::Always => true,
            Use::InitializeOnly => self.phase != Phase::FullFeature,
            Use::LeadingOnly => matches!(self.phase, Phase::Leading | Phase::Discovery),
            Use::FullFeatureOnly => self.phase == Phase::FullFeature,
        };
        !(sender_ok && time_ok)
    }

    fn is_irrelevant(&self, key: Key) -> bool {
        let discovery = self.phase == Phase::Discovery;
        match key.spec().irrelevant {
            IrrelevantWhen::Never => false,
            IrrelevantWhen::Discovery => discovery,
            IrrelevantWhen::NoUnsolicitedData => {
                let p = &self.params;
                let decided = |k| self.received.contains(k) || self.sent.contains(k);
                let both = decided(Key::InitialR2T) && decided(Key::ImmediateData);
                discovery || (both && p.initial_r2t && !p.immediate_data)
            }
            IrrelevantWhen::NoRdma => !self.params.rdma_extensions,
        }
    }

    /// Answers an offer of the peer, or records its declaration.
    fn answer(&mut self, key: Key, value: &str, out: &mut TextBuf) {
        let name = key.name();
        match key.spec().kind {
            Kind::And | Kind::Or => match text::parse_bool(value) {
                Some(theirs) => {
                    let result = combine_bool(key, self.own_bool(key), theirs);
                    self.set_bool(key, result);
                    out.put_bool(name, result);
                }
                None => out.put(name, REJECT),
            },
            Kind::Min(low, high) | Kind::Max(low, high) => match parse_in_range(value, low, high) {
                Some(theirs) => {
                    let result = combine_number(key, self.own_number(key), theirs);
                    self.set_number(key, result);
                    out.put_number(name, result.into());
                }
                None => out.put(name, REJECT),
            },
            Kind::List => match self.pick(key, value) {
                Some(picked) => out.put(name, picked),
                None => out.put(name, REJECT),
            },
            Kind::DeclareNumber(low, high) => match parse_in_range(value, low, high) {
                Some(n) => self.set_number(key, n),
                None => out.put(name, REJECT),
            },
            Kind::DeclareBool => match text::parse_bool(value) {
                Some(b) => self.set_bool(key, b),
                None => out.put(name, REJECT),
            },
            Kind::DeclareText(max) => {
                if value.len() > max {
                    out.put(name, REJECT);
                }
            }
            Kind::ObsoleteBool => out.put(name, "No"),
            Kind::ObsoleteRange | Kind::Security | Kind::SendTargets => out.put(name, REJECT),
        }
    }

    /// The responder's choice from a list, which becomes the result.
    fn pick(&mut self, key: Key, list: &str) -> Option<&'static str> {
        match key {
            Key::HeaderDigest | Key::DataDigest => {
                let picked = self.own_digest(key).pick(list)?;
                self.set_digest(key, picked);
                Some(picked.name())
            }
            Key::TaskReporting => {
                let mut names = text::parse_list(list)?.filter_map(TaskReporting::from_name);
                let supported = self.offer.task_reporting;
                let picked = names.find(|t| *t == TaskReporting::Rfc3720 || supported.contains(t))?;
                self.params.task_reporting = picked;
                Some(picked.name())
            }
            _ => None,
        }
    }

    /// Accepts the peer's answer to our offer. It applies the result function again, so that a peer
    /// that answers with its own value instead of the result is understood too.
    fn take_answer(&mut self, key: Key, value: &str) -> Result<(), NegotiationError> {
        let bad = NegotiationError::BadAnswer(key);
        match key.spec().kind {
            Kind::And | Kind::Or => {
                let theirs = text::parse_bool(value).ok_or(bad)?;
                self.set_bool(key, combine_bool(key, self.own_bool(key), theirs));
            }
            Kind::Min(low, high) | Kind::Max(low, high) => {
                let theirs = parse_in_range(value, low, high).ok_or(bad)?;
                self.set_number(key, combine_number(key, self.own_number(key), theirs));
            }
            Kind::List if key == Key::TaskReporting => {
                let picked = TaskReporting::from_name(value).ok_or(bad)?;
                if picked != TaskReporting::Rfc3720 && !self.offer.task_reporting.contains(&picked) {
                    return Err(bad);
                }
                self.params.task_reporting = picked;
            }
            Kind::List => {
                let one = !value.contains(',');
                let picked = self.own_digest(key).pick(value).filter(|_| one).ok_or(bad)?;
                self.set_digest(key, picked);
            }
            _ => return Err(bad),
        }
        Ok(())
    }

    /// Offers a key of ours unless it has been negotiated or is forbidden in this phase.
    /// Declarations expect no answer.
    pub fn originate(&mut self, key: Key, out: &mut TextBuf) {
        if self.sent.contains(key) || self.is_forbidden(key, self.role) {
            return;
        }
        if key == Key::MaxRecvDataSegmentLength && self.is_iser() {
            // RFC 7145 §6.2: two other keys replace it.
            return;
        }
        let declared = is_declared(key);
        if !declared && self.received.contains(key) {
            return;
        }
        let name = key.name();
        match key.spec().kind {
            Kind::And | Kind::Or => out.put_bool(name, self.own_bool(key)),
            Kind::Min(..) | Kind::Max(..) | Kind::DeclareNumber(..) => {
                let n = self.own_number(key);
                if key == Key::MaxRecvDataSegmentLength {
                    self.params.max_recv_data_segment_length = n;
                }
                out.put_number(name, n.into());
            }
            Kind::List if key == Key::TaskReporting => {
                let names: Vec<_> = self.offer.task_reporting.iter().map(|t| t.name()).collect();
                out.put(name, &names.join(","));
            }
            Kind::List => out.put(name, self.own_digest(key).list()),
            Kind::DeclareBool => {
                let value = self.own_bool(key);
                self.set_bool(key, value);
                out.put_bool(name, value);
            }
            _ => return,
        }
        self.sent.insert(key);
        if !declared {
            self.unanswered.insert(key);
        }
    }

    /// Offers all keys of an initiator in this phase.
    pub fn originate_all(&mut self, out: &mut TextBuf) {
        use Key::{
            DataDigest, DataPDUInOrder, DataSequenceInOrder, DefaultTime2Retain, DefaultTime2Wait,
            ErrorRecoveryLevel, FirstBurstLength, HeaderDigest, ImmediateData, InitialR2T, MaxBurstLength,
            MaxConnections, MaxOutstandingR2T,
        };
        let connection = [HeaderDigest, DataDigest];
        let both = [DefaultTime2Wait, DefaultTime2Retain, ErrorRecoveryLevel];
        let normal = [
            InitialR2T,
            ImmediateData,
            MaxBurstLength,
            FirstBurstLength,
            MaxOutstandingR2T,
            MaxConnections,
            DataPDUInOrder,
            DataSequenceInOrder,
        ];
        if self.phase != Phase::FullFeature && !self.offer.rdma_extensions {
            connection.into_iter().for_each(|k| self.originate(k, out));
        }
        if matches!(self.phase, Phase::Leading | Phase::Discovery) {
            both.into_iter().for_each(|k| self.originate(k, out));
        }
        if self.phase == Phase::Leading {
            normal.into_iter().for_each(|k| self.originate(k, out));
            // Keys with their default value are left out: old targets log them as unknown.
            if self.offer.task_reporting.iter().any(|t| *t != TaskReporting::Rfc3720) {
                self.originate(Key::TaskReporting, out);
            }
            if self.offer.protocol_level > 1 {
                self.originate(Key::ISCSIProtocolLevel, out);
            }
            if self.offer.rdma_extensions {
                self.originate(Key::RDMAExtensions, out);
                self.originate(Key::InitiatorRecvDataSegmentLength, out);
                self.originate(Key::TargetRecvDataSegmentLength, out);
                self.originate_iser_declarations(out);
            }
        }
        self.originate(Key::MaxRecvDataSegmentLength, out);
    }

    /// Offers required keys that the peer has not offered. A responder calls it before it agrees to
    /// the next stage.
    pub fn originate_required(&mut self, out: &mut TextBuf) {
        for key in [Key::HeaderDigest, Key::DataDigest] {
            if self.own_digest(key) == DigestChoice::Require {
                self.originate(key, out);
            }
        }
    }

    /// Ends the negotiation. An unanswered offer leaves the default, except for booleans that our
    /// side's value decides alone (RFC 7143 §6.2.2 lets the peer omit the answer).
    ///
    /// # Errors
    /// [`NegotiationError::Required`] if a required digest was not agreed on, or `RDMAExtensions`
    /// on RDMA.
    pub fn finish(mut self) -> Result<Params, NegotiationError> {
        for key in [Key::HeaderDigest, Key::DataDigest] {
            self.check_required(key)?;
        }
        let unanswered = self.unanswered;
        for spec in super::TABLE.iter().filter(|s| unanswered.contains(s.key)) {
            match (spec.kind, self.own_bool_opt(spec.key)) {
                (Kind::And, Some(false)) => self.set_bool(spec.key, false),
                (Kind::Or, Some(true)) => self.set_bool(spec.key, true),
                _ => {}
            }
        }
        // RFC 7143 §13.14: FirstBurstLength must not exceed MaxBurstLength; if both sides agree
        // otherwise, the smaller applies.
        self.params.first_burst_length = self.params.first_burst_length.min(self.params.max_burst_length);
        if self.is_iser() {
            self.finish_iser()?;
        }
        Ok(self.params)
    }

    /// Whether this is a login on RDMA for a session with iSER.
    fn is_iser(&self) -> bool {
        self.offer.rdma_extensions && matches!(self.phase, Phase::Leading | Phase::Further)
    }

    /// Applies RFC 7145 §6.1, §6.2: digests are off regardless of their keys, and the lengths of
    /// data segments come from the keys of each direction.
    fn finish_iser(&mut self) -> Result<(), NegotiationError> {
        let p = &mut self.params;
        if !p.rdma_extensions {
            return Err(NegotiationError::Required(Key::RDMAExtensions));
        }
        (p.header_digest, p.data_digest) = (Digest::None, Digest::None);
        let lengths = (p.target_recv_data_segment_length, p.initiator_recv_data_segment_length);
        let (own, peer) = if self.role == Role::Target { lengths } else { (lengths.1, lengths.0) };
        (p.max_recv_data_segment_length, p.peer_max_recv_data_segment_length) = (own, peer);
        Ok(())
    }

    fn check_required(&self, key: Key) -> Result<(), NegotiationError> {
        let agreed = match key {
            Key::HeaderDigest => self.params.header_digest,
            Key::DataDigest => self.params.data_digest,
            _ => return Ok(()),
        };
        if self.own_digest(key).supports(agreed) { Ok(()) } else { Err(NegotiationError::Required(key)) }
    }

    fn own_digest(&self, key: Key) -> DigestChoice {
        if self.offer.rdma_extensions {
            return DigestChoice::Never;
        }
        if key == Key::HeaderDigest { self.offer.header_digest } else { self.offer.data_digest }
    }

    fn set_digest(&mut self, key: Key, digest: Digest) {
        if key == Key::HeaderDigest {
            self.params.header_digest = digest;
        } else {
            self.params.data_digest = digest;
        }
    }

    fn own_bool_opt(&self, key: Key) -> Option<bool> {
        let o = &self.offer;
        Some(match key {
            Key::InitialR2T => o.initial_r2t,
            Key::ImmediateData => o.immediate_data,
            Key::DataPDUInOrder => o.data_pdu_in_order,
            Key::DataSequenceInOrder => o.data_sequence_in_order,
            Key::RDMAExtensions => o.rdma_extensions && self.phase != Phase::Discovery,
            Key::ISERHelloRequired => o.iser_hello_required,
            _ => return None,
        })
    }

    fn own_bool(&self, key: Key) -> bool {
        self.own_bool_opt(key).unwrap_or(false)
    }

    fn set_bool(&mut self, key: Key, value: bool) {
        let p = &mut self.params;
        match key {
            Key::InitialR2T => p.initial_r2t = value,
            Key::ImmediateData => p.immediate_data = value,
            Key::DataPDUInOrder => p.data_pdu_in_order = value,
            Key::DataSequenceInOrder => p.data_sequence_in_order = value,
            Key::RDMAExtensions => p.rdma_extensions = value,
            Key::TaggedBufferForSolicitedDataOnly => p.tagged_buffer_for_solicited_data_only = value,
            Key::ISERHelloRequired => p.iser_hello_required = value,
            _ => {}
        }
    }

    /// Our offer for a number, within its range.
    fn own_number(&self, key: Key) -> u32 {
        let (o, p) = (&self.offer, &self.params);
        let n = match key {
            Key::MaxConnections => o.max_connections.into(),
            Key::MaxRecvDataSegmentLength => o.max_recv_data_segment_length,
            Key::MaxBurstLength => o.max_burst_length,
            Key::FirstBurstLength => {
                // It must not exceed MaxBurstLength (RFC 7143 §13.14), which may have become
                // smaller.
                let burst =
                    if self.received.contains(Key::MaxBurstLength) { p.max_burst_length } else { u32::MAX };
                o.first_burst_length.min(o.max_burst_length).min(burst)
            }
            Key::DefaultTime2Wait => o.default_time2wait_s.into(),
            Key::DefaultTime2Retain => o.default_time2retain_s.into(),
            Key::MaxOutstandingR2T => o.max_outstanding_r2t.into(),
            Key::ErrorRecoveryLevel => o.error_recovery_level.into(),
            Key::ISCSIProtocolLevel => o.protocol_level.into(),
            Key::TargetRecvDataSegmentLength => o.target_recv_data_segment_length,
            Key::InitiatorRecvDataSegmentLength => o.initiator_recv_data_segment_length,
            Key::MaxOutstandingUnexpectedPDUs => o.max_outstanding_unexpected_pdus,
            Key::MaxAHSLength => o.max_ahs_length,
            _ => 0,
        };
        match key.spec().kind {
            Kind::Min(low, high) | Kind::Max(low, high) | Kind::DeclareNumber(low, high) => {
                n.clamp(low, high)
            }
            _ => n,
        }
    }

    /// Sets a number that is within its key's range, so that every cast below keeps the value.
    fn set_number(&mut self, key: Key, value: u32) {
        let p = &mut self.params;
        match key {
            Key::MaxConnections => p.max_connections = value as u16,
            Key::MaxRecvDataSegmentLength => p.peer_max_recv_data_segment_length = value,
            Key::MaxBurstLength => p.max_burst_length = value,
            Key::FirstBurstLength => p.first_burst_length = value,
            Key::DefaultTime2Wait => p.default_time2wait_s = value as u16,
            Key::DefaultTime2Retain => p.default_time2retain_s = value as u16,
            Key::MaxOutstandingR2T => p.max_outstanding_r2t = value as u16,
            Key::ErrorRecoveryLevel => p.error_recovery_level = value as u8,
            Key::ISCSIProtocolLevel => p.protocol_level = value as u8,
            Key::TargetRecvDataSegmentLength => p.target_recv_data_segment_length = value,
            Key::InitiatorRecvDataSegmentLength => p.initiator_recv_data_segment_length = value,
            Key::MaxOutstandingUnexpectedPDUs => p.peer_max_outstanding_unexpected_pdus = value,
            Key::MaxAHSLength => p.peer_max_ahs_length = value,
            _ => {}
        }
    }
}

/// Whether each side declares its own value and expects no answer.
fn is_declared(key: Key) -> bool {
    matches!(key.spec().kind, Kind::DeclareNumber(..) | Kind::DeclareBool | Kind::DeclareText(_))
}

fn combine_bool(key: Key, ours: bool, theirs: bool) -> bool {
    if key.spec().kind == Kind::Or { ours || theirs } else { ours && theirs }
}

fn combine_number(key: Key, ours: u32, theirs: u32) -> u32 {
    if matches!(key.spec().kind, Kind::Max(..)) { ours.max(theirs) } else { ours.min(theirs) }
}

fn parse_in_range(value: &str, low: u32, high: u32) -> Option<u32> {
    let n = u32::try_from(text::parse_number(value)?).ok()?;
    (low..=high).contains(&n).then_some(n)
}

#[cfg(test)]
#[path = "tests.rs"]
pub(crate) mod tests;
