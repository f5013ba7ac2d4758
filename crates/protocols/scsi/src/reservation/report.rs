//! PERSISTENT RESERVE IN (SPC-4 §6.15): parameter data. Only reads the state; the caller truncates
//! to the allocation length.

use super::Reservations;

/// SERVICE ACTION of PERSISTENT RESERVE IN (SPC-4 table 217).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum InAction {
    /// All registered keys.
    ReadKeys = 0x00,
    /// The reservation.
    ReadReservation = 0x01,
    /// The unit's capabilities.
    ReportCapabilities = 0x02,
    /// All registrations and the reservation holders.
    ReadFullStatus = 0x03,
}

impl InAction {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::ReadKeys, Self::ReadReservation, Self::ReportCapabilities, Self::ReadFullStatus];

    /// From the SERVICE ACTION field.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|a| *a as u8 == code)
    }
}

impl Reservations {
    /// The parameter data of `action`, whole. PTPL_C reports `can_persist`.
    pub fn persistent_in(&self, action: InAction, can_persist: bool) -> Vec<u8> {
        match action {
            InAction::ReadKeys => {
                self.with_header(self.registrations.iter().flat_map(|r| r.key.to_be_bytes()).collect())
            }
            InAction::ReadReservation => self.with_header(self.reservation_descriptor()),
            InAction::ReportCapabilities => self.capabilities(can_persist).to_vec(),
            InAction::ReadFullStatus => self.with_header(self.full_status()),
        }
    }

    /// PRGENERATION, ADDITIONAL LENGTH and `body`.
    fn with_header(&self, body: Vec<u8>) -> Vec<u8> {
        let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
        let mut data = Vec::with_capacity(8 + body.len());
        data.extend_from_slice(&self.generation.to_be_bytes());
        data.extend_from_slice(&length.to_be_bytes());
        data.extend_from_slice(&body);
        data
    }

    /// §6.15.3.2: empty, or key, obsolete, reserved, SCOPE and TYPE, obsolete.
    fn reservation_descriptor(&self) -> Vec<u8> {
        let Some(held) = &self.held else { return Vec::new() };
        // For the all registrants types the key is zero.
        let key = held.holder.as_ref().and_then(|holder| self.key_of(holder)).unwrap_or(0);
        let mut data = key.to_be_bytes().to_vec();
        data.extend_from_slice(&[0, 0, 0, 0, 0, held.kind as u8, 0, 0]);
        data
    }

    /// §6.15.4: CRH, SIP_C, ATP_C, PTPL_C; TMV, ALLOW COMMANDS 011b (of [`super::access`]'s table),
    /// PTPL_A; every type.
    fn capabilities(&self, can_persist: bool) -> [u8; 8] {
        let crh_sip_atp = 0x10 | 0x08 | 0x04;
        let types = 0x80 | 0x40 | 0x20 | 0x08 | 0x02;
        let ptpl_c = u8::from(can_persist);
        let ptpl_a = u8::from(self.aptpl);
        [0, 8, crh_sip_atp | ptpl_c, 0x80 | 0b011 << 4 | ptpl_a, types, 0x01, 0, 0]
    }

    /// §6.15.5: one full status descriptor per registration.
    fn full_status(&self) -> Vec<u8> {
        let mut data = Vec::new();
        for r in &self.registrations {
            let holds = self.holds(&r.port);
            let scope_and_type = self.held.as_ref().filter(|_| holds).map_or(0, |held| held.kind as u8);
            let id = r.port.initiator.bytes();
            data.extend_from_slice(&r.key.to_be_bytes());
            data.extend_from_slice(&[0; 4]);
            // ALL_TG_PT is zero: the descriptor is for one nexus.
            data.push(u8::from(holds));
            data.push(scope_and_type);
            data.extend_from_slice(&[0; 4]);
            data.extend_from_slice(&r.port.target_port.to_be_bytes());
            data.extend_from_slice(&u32::try_from(id.len()).unwrap_or(u32::MAX).to_be_bytes());
            data.extend_from_slice(id);
        }
        data
    }
}
