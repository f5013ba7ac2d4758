//! The unit attention conditions that a logical unit establishes (SAM-5 §5.14), as small values to
//! queue per I_T_L nexus.

use crate::{AdditionalSense, Sense, SenseKey};

/// A unit attention condition: the unit reports it to an initiator before that initiator's next
/// command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum UnitAttention {
    /// 29h/01h: the unit was powered on.
    PowerOnOccurred,
    /// 29h/00h: power on, reset, or bus device reset: the general case.
    PowerOnResetOrBusDeviceReset,
    /// 29h/02h: a hard reset of the bus or, over a network, of the target.
    ScsiBusReset,
    /// 29h/03h: LOGICAL UNIT RESET.
    BusDeviceResetFunctionOccurred,
    /// 29h/04h: the unit reset itself.
    DeviceInternalReset,
    /// 29h/07h: the I_T nexus was lost.
    NexusLossOccurred,
    /// 28h/00h: a medium was inserted or may have changed.
    MediumMayHaveChanged,
    /// 2Ah/01h: another nexus changed mode parameters.
    ModeParametersChanged,
    /// 2Ah/02h: another nexus changed log parameters.
    LogParametersChanged,
    /// 2Ah/03h: a reservation of this nexus was preempted (CLEAR of PERSISTENT RESERVE OUT).
    ReservationsPreempted,
    /// 2Ah/04h: a reservation that this nexus may have relied on was released.
    ReservationsReleased,
    /// 2Ah/05h: the registration of this nexus was removed.
    RegistrationsPreempted,
    /// 2Ah/06h: a target port group changed its state.
    AsymmetricAccessStateChanged,
    /// 2Ah/07h: the target could not change a target port group's state.
    ImplicitTransitionFailed,
    /// 2Ah/09h: the unit grew or shrank.
    CapacityDataHasChanged,
    /// 2Fh/00h: a task management function or PREEMPT AND ABORT of another nexus cleared commands
    /// of this one.
    CommandsClearedByAnotherInitiator,
    /// 47h/7Fh: tasks were terminated with their iSCSI connection (RFC 7143 §7.6).
    SomeCommandsClearedByIscsiProtocolEvent,
    /// 38h/07h: a thin unit crossed its soft threshold.
    ThinProvisioningSoftThresholdReached,
    /// 3Fh/00h: something about the target changed.
    TargetOperatingConditionsHaveChanged,
    /// 3Fh/01h: the target runs other microcode.
    MicrocodeChanged,
    /// 3Fh/03h: INQUIRY data or vital product data changed.
    InquiryDataHasChanged,
    /// 3Fh/05h: the device identification changed.
    DeviceIdentifierChanged,
    /// 3Fh/0Eh: the LUN inventory changed.
    ReportedLunsDataHasChanged,
}

impl UnitAttention {
    /// All conditions.
    const ALL: [Self; 23] = [
        Self::PowerOnOccurred,
        Self::PowerOnResetOrBusDeviceReset,
        Self::ScsiBusReset,
        Self::BusDeviceResetFunctionOccurred,
        Self::DeviceInternalReset,
        Self::NexusLossOccurred,
        Self::MediumMayHaveChanged,
        Self::ModeParametersChanged,
        Self::LogParametersChanged,
        Self::ReservationsPreempted,
        Self::ReservationsReleased,
        Self::RegistrationsPreempted,
        Self::AsymmetricAccessStateChanged,
        Self::ImplicitTransitionFailed,
        Self::CapacityDataHasChanged,
        Self::CommandsClearedByAnotherInitiator,
        Self::SomeCommandsClearedByIscsiProtocolEvent,
        Self::ThinProvisioningSoftThresholdReached,
        Self::TargetOperatingConditionsHaveChanged,
        Self::MicrocodeChanged,
        Self::InquiryDataHasChanged,
        Self::DeviceIdentifierChanged,
        Self::ReportedLunsDataHasChanged,
    ];

    /// The condition with this additional sense code and qualifier.
    pub fn of(asc: u8, ascq: u8) -> Option<Self> {
        let code = AdditionalSense::new(asc, ascq);
        Self::ALL.into_iter().find(|attention| attention.additional() == code)
    }

    /// The additional sense code of the condition.
    pub const fn additional(self) -> AdditionalSense {
        use AdditionalSense as A;
        match self {
            Self::PowerOnOccurred => A::POWER_ON_OCCURRED,
            Self::PowerOnResetOrBusDeviceReset => A::POWER_ON_RESET_OR_BUS_DEVICE_RESET,
            Self::ScsiBusReset => A::SCSI_BUS_RESET_OCCURRED,
            Self::BusDeviceResetFunctionOccurred => A::BUS_DEVICE_RESET_FUNCTION_OCCURRED,
            Self::DeviceInternalReset => A::DEVICE_INTERNAL_RESET,
            Self::NexusLossOccurred => A::I_T_NEXUS_LOSS_OCCURRED,
            Self::MediumMayHaveChanged => A::MEDIUM_MAY_HAVE_CHANGED,
            Self::ModeParametersChanged => A::MODE_PARAMETERS_CHANGED,
            Self::LogParametersChanged => A::LOG_PARAMETERS_CHANGED,
            Self::ReservationsPreempted => A::RESERVATIONS_PREEMPTED,
            Self::ReservationsReleased => A::RESERVATIONS_RELEASED,
            Self::RegistrationsPreempted => A::REGISTRATIONS_PREEMPTED,
            Self::AsymmetricAccessStateChanged => A::ASYMMETRIC_ACCESS_STATE_CHANGED,
            Self::ImplicitTransitionFailed => A::IMPLICIT_ASYMMETRIC_ACCESS_STATE_TRANSITION_FAILED,
            Self::CapacityDataHasChanged => A::CAPACITY_DATA_HAS_CHANGED,
            Self::CommandsClearedByAnotherInitiator => A::COMMANDS_CLEARED_BY_ANOTHER_INITIATOR,
            Self::SomeCommandsClearedByIscsiProtocolEvent => A::SOME_COMMANDS_CLEARED_BY_ISCSI_PROTOCOL_EVENT,
            Self::ThinProvisioningSoftThresholdReached => A::THIN_PROVISIONING_SOFT_THRESHOLD_REACHED,
            Self::TargetOperatingConditionsHaveChanged => A::TARGET_OPERATING_CONDITIONS_HAVE_CHANGED,
            Self::MicrocodeChanged => A::MICROCODE_HAS_BEEN_CHANGED,
            Self::InquiryDataHasChanged => A::INQUIRY_DATA_HAS_CHANGED,
            Self::DeviceIdentifierChanged => A::DEVICE_IDENTIFIER_CHANGED,
            Self::ReportedLunsDataHasChanged => A::REPORTED_LUNS_DATA_HAS_CHANGED,
        }
    }

    /// The sense data that reports the condition.
    pub const fn sense(self) -> Sense {
        Sense::new(SenseKey::UnitAttention, self.additional())
    }
}

impl From<UnitAttention> for Sense {
    fn from(attention: UnitAttention) -> Self {
        attention.sense()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_attention_has_its_own_key_and_code() {
        let sense = Sense::from(UnitAttention::RegistrationsPreempted);
        assert_eq!(sense.key, SenseKey::UnitAttention);
        assert_eq!((sense.additional.asc, sense.additional.ascq), (0x2A, 0x05));
        let sense = Sense::from(UnitAttention::ReportedLunsDataHasChanged);
        assert_eq!((sense.additional.asc, sense.additional.ascq), (0x3F, 0x0E));
    }

    #[test]
    fn each_condition_is_known_by_its_code() {
        for attention in UnitAttention::ALL {
            let code = attention.additional();
            assert_eq!(UnitAttention::of(code.asc, code.ascq), Some(attention));
        }
        assert_eq!(UnitAttention::of(0x29, 0x7f), None);
    }
}
