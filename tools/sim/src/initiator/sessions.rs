//! How an initiator comes to its session and loses it: links, logins, pings, and what becomes of tasks under way.
//!
//! Nothing of the workload is here, and nothing of full-feature PDUs.

use iscsi::chap::{Credential, Secret};
use iscsi::frame::{Cut, Cutter, padding_len};
use iscsi::login::initiator::{Chap, Config, InitiatorLogin, InitiatorLoginError, Request, Step};
use iscsi::pdu::{Bhs, LoginStatus, Opcode};
use iscsi::text::LOGIN_SEGMENT_LEN;

use super::link::{Link, Phase, Reader};
use super::{COMMAND_TIME, Initiator, LOGIN_TIME, Mending, PING_AFTER, Purpose, State, TICK};
use crate::clock::MS;
use crate::iser;
use crate::network::Side;
use crate::oracle::OpId;
use crate::rdma::Pair;
use crate::target::{NAME, TARGET_SECRET};
use crate::trace::note;
use ::iser::Control;

const LOGIN_CUTTER: Cutter = Cutter {
    header_digest: false,
    data_digest: false,
    max_data_segment: LOGIN_SEGMENT_LEN as u32,
    max_ahs: 0,
};

impl Initiator {
    /// Makes a link and begins its login.
    pub(super) fn dial(&mut self) {
        let cid = self.next_cid;
        self.next_cid = self.next_cid.wrapping_add(1);
        self.dial_as(cid);
    }

    /// The same for a connection with this CID.
    pub(super) fn dial_as(&mut self, cid: u16) {
        let now = self.now();
        let id = self.shared.network.borrow_mut().connect(now, self.shared.quality);
        self.wrong_secret =
            self.plan.wrong_secret && self.shared.chap.is_some() && id.0 < 3 && self.tsih == 0;
        let (wrong, mutual) = (self.wrong_secret, self.plan.mutual_chap);
        let chap = self.shared.chap.as_ref().map(|(name, secret)| {
            let secret = if wrong { "not the secret of it" } else { secret };
            let target = Credential { name: String::new(), secret: Secret::new(TARGET_SECRET) };
            Chap {
                credential: Credential { name: name.clone(), secret: Secret::new(secret) },
                target: mutual.then_some(target),
                hashes: Vec::new(),
            }
        });
        let mut login = InitiatorLogin::new(Config {
            initiator: self.plan.name.clone(),
            alias: None,
            target: Some(NAME.to_owned()),
            isid: self.plan.isid,
            tsih: self.tsih,
            cid,
            cmd_sn: self.protocol.cmd_sn(),
            itt: self.rng.below(1 << 31) as u32,
            chap,
            offer: self.plan.offer.clone(),
            session: (self.tsih != 0).then(|| self.protocol.params().clone()),
            skip_security: self.plan.skip_security,
        });
        note!(self.shared.trace, "initiator {}: dials link {} (cid {cid})", self.number, id.0);
        let mut output = Vec::new();
        let mut pair = self.plan.iser.map(|mut setup| {
            setup.seed = std::array::from_fn(|_| self.rng.bits() as u8);
            Pair::call(setup).expect("a setup that is right")
        });
        emit(login.start(), pair.as_mut(), &mut output);
        self.links.push(Link {
            pair,
            id,
            cid,
            phase: Phase::Login(Box::new(login)),
            input: Vec::new(),
            output,
            last_heard: now,
            pinged: None,
        });
    }

    /// Keeps links alive, and makes more of them.
    pub(super) fn supervise(&mut self) {
        let now = self.now();
        let mut silent = Vec::new();
        for at in 0..self.links.len() {
            let link = &self.links[at];
            let Phase::Full(on, _) = &link.phase else { continue };
            let (on, id) = (*on, link.id);
            match link.pinged {
                // Of iSER the answer is wanted: a flipped bit in an FPDU's length, which nothing guards before the CRC, has the
                // target wait for the rest of 64 KiB, and what it hears meanwhile keeps it content.
                Some(pinged) if link.last_heard > pinged && link.pair.is_none() => {
                    self.links[at].pinged = None;
                }
                Some(pinged) if now >= pinged + link.patience() => silent.push(id),
                Some(_) => {}
                None if now >= link.last_heard + PING_AFTER => {
                    self.links[at].pinged = Some(now);
                    self.ping(on, id);
                }
                None => {}
            }
        }
        for id in silent {
            self.lose_link(id, "the target is silent");
        }
        if matches!(self.state, State::Down(_)) {
            return;
        }
        if self.protocol.params().error_recovery_level > 0 && self.state == State::Up && now >= self.next_tick
        {
            self.next_tick = now + TICK;
            if let Some((on, error)) = self.protocol.tick() {
                note!(self.shared.trace, "initiator {}: gives {on:?} up: {error}", self.number);
                let its = |link: &&Link| matches!(link.phase, Phase::Full(own, _) if Some(own) == on);
                match self.links.iter().find(its).map(|link| link.id) {
                    Some(id) => self.lose_link(id, "what was lost does not come again"),
                    None => return self.lose("what was lost does not come again"),
                }
            }
        }
        if self.shared.resets_by_others && self.state == State::Up && now >= self.next_question {
            self.next_question = now + COMMAND_TIME / 2;
            self.ask_after(now.saturating_sub(COMMAND_TIME));
        }
        if self.joining.is_some_and(|until| until <= now) {
            let login = self.links.iter().find(|link| matches!(link.phase, Phase::Login(_)));
            match login.map(|link| link.id) {
                Some(id) => self.lose_link(id, "a further login took too long"),
                None => return self.lose("a further login took too long"),
            }
        }
        self.mend();
        let wanted = self.plan.connections.min(usize::from(self.protocol.params().max_connections));
        let may_join = self.joining.is_none() && self.broken.is_empty() && now >= self.next_join;
        if self.state == State::Up && may_join && self.links.len() < wanted {
            self.joining = Some(now + LOGIN_TIME);
            self.dial();
        }
    }

    /// The session is lost: what may be repeated waits for the next one, the fate of the rest is unknown.
    pub(super) fn lose(&mut self, why: &str) {
        if matches!(self.state, State::Down(_) | State::Over) {
            return;
        }
        note!(self.shared.trace, "initiator {}: loses its session: {why}", self.number);
        let now = self.now();
        match self.state {
            State::Connecting(_) => self.failed_logins += 1,
            _ => self.losses += 1,
        }
        // Its host may have died, too: then the target hears nothing, and meets the next login with the old session alive.
        if self.rng.chance(300) {
            let mut network = self.shared.network.borrow_mut();
            self.links.iter().for_each(|link| network.vanish(link.id));
        }
        self.drop_links();
        for (_, token) in self.protocol.disconnect(self.plan.first_cmd_sn) {
            self.give_up(token.op);
        }
        self.ops.values_mut().for_each(|op| op.replayed = true);
        let pause = self.rng.between(MS, 300 * MS);
        self.state = State::Down(now + pause);
    }

    pub(super) fn drop_links(&mut self) {
        let now = self.now();
        for link in self.links.drain(..) {
            self.shared.network.borrow_mut().abandon(now, link.id, Side::Initiator);
        }
        self.joining = None;
        self.next_join = 0;
        self.broken.clear();
        self.mending = Mending::Idle(0);
        self.tap.forget();
    }

    /// A task ends without its answer.
    pub(super) fn give_up(&mut self, id: OpId) {
        let Some(op) = self.ops.remove(&id) else { return };
        self.ended += 1;
        if let Purpose::Scsi(scsi) = op.purpose {
            let mut oracle = self.shared.oracle.borrow_mut();
            oracle.end_look(id);
            oracle.end_sync(id, false);
            if !scsi.writes.is_empty() {
                self.lost.push(id);
            }
        }
    }

    /// Handles a Login Response; false when it is not whole.
    pub(super) fn login_pdu(&mut self, at: usize) -> Result<bool, String> {
        let link = &mut self.links[at];
        let cut = LOGIN_CUTTER.cut(&link.input);
        let cut = cut.map_err(|error| format!("initiator {}: login: {error}", self.number))?;
        let Cut::Pdu { bhs, data, consumed, .. } = cut else { return Ok(false) };
        let (bhs, data) = (*bhs, link.input[data].to_vec());
        link.input.drain(..consumed);
        self.login_response(at, &bhs, &data)
    }

    /// Handles a Login Response; false if its link is gone after it.
    pub(super) fn login_response(&mut self, at: usize, bhs: &Bhs, data: &[u8]) -> Result<bool, String> {
        let number = self.number;
        let link = &mut self.links[at];
        let Phase::Login(login) = &mut link.phase else { return Ok(false) };
        if bhs.opcode() != Some(Opcode::LoginResponse) {
            return Err(format!("initiator {number}: {bhs} during login"));
        }
        let rng = &mut self.rng;
        let mut random = |buf: &mut [u8]| {
            buf.iter_mut().for_each(|byte| *byte = rng.bits() as u8);
            Ok(())
        };
        let step = login.handle_with(bhs.as_login_response(), data, &mut random);
        match step {
            Ok(Step::Send(request)) => emit(request, link.pair.as_mut(), &mut link.output),
            Ok(Step::Done(_)) if self.wrong_secret => {
                return Err(format!("initiator {number}: a login with a wrong secret"));
            }
            Ok(Step::Done(established)) => {
                let on = self.protocol.connect(link.cid, &established);
                let reader = {
                    let recovers = established.params.error_recovery_level > 0;
                    let losses = recovers.then(|| (self.rng.fork(), self.plan.lost_per_mille));
                    Reader::new(&established.params, self.plan.piecewise, losses)
                };
                link.phase = Phase::Full(on, reader);
                self.tap.connected(on, established.exp_cmd_sn, established.max_cmd_sn);
                note!(self.shared.trace, "initiator {number}: logged in on link {}", link.id.0);
                if self.tsih == 0 {
                    self.tsih = established.tsih;
                    self.state = State::Up;
                    // The target has ended what was left of the old session.
                    for op in std::mem::take(&mut self.lost) {
                        self.shared.oracle.borrow_mut().end_write(op, crate::oracle::Ending::Unknown);
                    }
                } else {
                    let cid = link.cid;
                    self.joined(cid);
                }
            }
            Ok(Step::Moved { .. }) => return Err(format!("initiator {number}: the target has moved")),
            Err(error) if self.state == State::LoggingOut => {
                // A connection that wanted to join a session which is going.
                note!(self.shared.trace, "initiator {number}: login: {error}");
                let link = self.links.remove(at);
                let now = self.now();
                self.shared.network.borrow_mut().abandon(now, link.id, Side::Initiator);
                return Ok(false);
            }
            Err(error) => {
                note!(self.shared.trace, "initiator {number}: login: {error}");
                let refused = InitiatorLoginError::Status(LoginStatus::AuthenticationFailure);
                if self.wrong_secret && error == refused {
                    self.refused_logins += 1;
                }
                let id = link.id;
                self.not_joined(id, &error);
            }
        }
        Ok(true)
    }
}

fn emit(request: Request, pair: Option<&mut Pair>, output: &mut Vec<u8>) {
    let bhs: Bhs = request.header.into();
    let pdu = [bhs.bytes(), &request.data[..], &[0; 3][..padding_len(request.data.len())]].concat();
    match pair {
        Some(pair) => pair.send(iser::message(Control::default(), &pdu), None),
        None => output.extend_from_slice(&pdu),
    }
}
