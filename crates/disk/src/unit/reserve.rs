//! Reservation commands: the pure machine of `scsi::reservation`, with its unit attentions delivered, its aborts passed on
//! and its APTPL state kept before GOOD is said.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use device::{Command, DataMover, ItlNexus, Nexus, Outcome};
use scsi::cdb::{PersistentReserveIn, PersistentReserveOut};
use scsi::reservation::{Access, Effects, Environment, ItPort, Refusal, Reservations, TransportId};
use scsi::{AdditionalSense, Sense, SenseKey, Status, UnitAttention};

use super::{DiskUnit, Known, State};

/// Aborts tasks for PREEMPT AND ABORT. The server does it: it knows the tasks.
pub trait AbortTasks: Send + Sync + 'static {
    /// Aborts every task of `nexus` (but not `except`, the command that asks for it) and resolves when they have stopped.
    fn abort(&self, nexus: Arc<ItlNexus>, except: &Command) -> Pin<Box<dyn Future<Output = ()>>>;
}

/// The nexus as persistent reservations name it.
pub(super) fn port_of(nexus: &Nexus) -> ItPort {
    // A server that gives no proper TransportID still gets reservations of its own.
    let parsed = TransportId::parse(&nexus.transport_id).ok().map(|(id, _)| id);
    let initiator = parsed
        .or_else(|| TransportId::iscsi_port(&nexus.initiator, nexus.id.0))
        .unwrap_or_else(|| TransportId::opaque(nexus.id.0));
    ItPort { initiator, target_port: nexus.target_port }
}

impl State {
    /// Writes every nexus's verdict anew.
    pub(super) fn refresh_verdicts(&self) {
        for known in &self.nexuses {
            let reserved = self.reservations.concerns(&known.port, known.nexus.nexus.id.0);
            known.nexus.set_reserved(reserved);
        }
    }

    fn establish(&self, port: &ItPort, attention: UnitAttention, except: &ItlNexus) {
        for known in self.nexuses.iter().filter(|known| known.port == *port) {
            if known.nexus.nexus.id != except.nexus.id {
                known.nexus.establish(attention);
            }
        }
    }
}

impl DiskUnit {
    pub(super) fn port_of(&self, nexus: &ItlNexus) -> ItPort {
        let id = nexus.nexus.id;
        let known = self.state().nexuses.iter().find(|k| k.nexus.nexus.id == id).map(|k| k.port.clone());
        known.unwrap_or_else(|| port_of(&nexus.nexus))
    }

    /// RESERVE and RELEASE.
    pub(super) fn reserve_legacy(&self, command: &Command, release: bool) -> Result<Outcome, Outcome> {
        let port = self.port_of(&command.nexus);
        let session = command.nexus.nexus.id.0;
        let mut state = self.state();
        let done = if release {
            state.reservations.release_legacy(&port, session)
        } else {
            state.reservations.reserve_legacy(&port, session)
        };
        state.refresh_verdicts();
        done.map(|()| Outcome::GOOD).map_err(|_| Outcome::status(Status::ReservationConflict))
    }

    /// PERSISTENT RESERVE IN.
    pub(super) fn persistent_in(
        &self,
        command: &Command,
        mover: &mut dyn DataMover,
        cdb: PersistentReserveIn,
    ) -> Result<Outcome, Outcome> {
        let port = self.port_of(&command.nexus);
        let data = {
            let state = self.state();
            let session = command.nexus.nexus.id.0;
            // Also asked when no verdict is set: whoever holds the unit by RESERVE conflicts with itself here.
            let allowed = state.reservations.check(&port, session, Access::PersistentIn);
            allowed.map_err(|_| Outcome::status(Status::ReservationConflict))?;
            state.reservations.persistent_in(cdb.action, self.options.persist.is_some())
        };
        Ok(self.answer(mover, data, u64::from(cdb.allocation)))
    }

    /// PERSISTENT RESERVE OUT.
    pub(super) async fn persistent_out(
        &self,
        command: &Command,
        mover: &mut dyn DataMover,
        cdb: PersistentReserveOut,
    ) -> Result<Outcome, Outcome> {
        let wanted = u64::from(cdb.parameter_len);
        let list = self.parameter_list(command, mover, wanted).await?;
        let port = self.port_of(&command.nexus);
        // One at a time: the next starts from what this one has kept.
        let _turn = self.reserving.atomic(0, 1).await;
        let (next, effects) = self.next_reservations(&port, command, cdb, &list)?;
        if effects.persist {
            self.keep(&next).await?;
        }
        let aborts = self.commit(next, &effects, command);
        for nexus in aborts {
            let aborter = self.aborter.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
            if let Some(aborter) = aborter {
                aborter.abort(nexus, command).await;
            }
        }
        Ok(Outcome::wrote(wanted))
    }

    /// What the reservations will be, if what follows from them can be kept.
    fn next_reservations(
        &self,
        port: &ItPort,
        command: &Command,
        cdb: PersistentReserveOut,
        list: &[u8],
    ) -> Result<(Reservations, Effects), Outcome> {
        let state = self.state();
        let mut target_ports: Vec<u16> = state.nexuses.iter().map(|k| k.port.target_port).collect();
        target_ports.extend_from_slice(&state.target_ports);
        target_ports.sort_unstable();
        target_ports.dedup();
        let mut initiators: Vec<_> = state.nexuses.iter().map(|k| k.port.initiator.clone()).collect();
        initiators.sort();
        initiators.dedup();
        let environment = Environment {
            target_ports: &target_ports,
            initiators: &initiators,
            can_persist: self.options.persist.is_some(),
        };
        let mut next = state.reservations.clone();
        let session = command.nexus.nexus.id.0;
        let effects = next
            .persistent_out(port, session, cdb.action, cdb.scope << 4 | cdb.kind, list, environment)
            .map_err(refused)?;
        Ok((next, effects))
    }

    async fn keep(&self, next: &Reservations) -> Result<(), Outcome> {
        let Some(persist) = &self.options.persist else { return Ok(()) };
        persist.save(next.to_bytes()).await.map_err(|error| {
            tracing::error!(%error, "reservations could not be kept");
            // The state is as it was, and so is what is kept, or newer by what the initiator asked for.
            Outcome::check(Sense::new(SenseKey::HardwareError, AdditionalSense::INTERNAL_TARGET_FAILURE))
        })
    }

    /// Puts the new state in force and tells who has to know. Gives the nexuses whose tasks are to be aborted.
    fn commit(&self, next: Reservations, effects: &Effects, command: &Command) -> Vec<Arc<ItlNexus>> {
        let mut state = self.state();
        state.reservations = next;
        for (port, attention) in &effects.attentions {
            state.establish(port, *attention, &command.nexus);
        }
        state.refresh_verdicts();
        let aborted = |known: &&Known| effects.abort.contains(&known.port);
        state.nexuses.iter().filter(aborted).map(|known| known.nexus.clone()).collect()
    }
}

fn refused(refusal: Refusal) -> Outcome {
    match refusal {
        Refusal::Conflict => Outcome::status(Status::ReservationConflict),
        Refusal::InvalidFieldInCdb(byte) => Sense::invalid_field_in_cdb(byte, None).into(),
        Refusal::InvalidFieldInParameterList(byte) => {
            Sense::invalid_field_in_parameter_list(byte, None).into()
        }
        Refusal::ParameterListLength => Sense::parameter_list_length_error().into(),
        Refusal::InvalidRelease => Sense::invalid_release().into(),
        Refusal::InsufficientResources => Sense::insufficient_registration_resources().into(),
    }
}
