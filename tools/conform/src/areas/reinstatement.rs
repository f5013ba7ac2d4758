//! Sessions and connections that replace others (RFC 7143 §6.3.4, §6.3.5).

use crate::check::Area::Reinstatement;
use crate::check::Check;
use crate::finding::{expect, not_applicable};
use crate::scsi::Command;

const AGAIN: &str = "A host that has crashed comes back with the name that it had; what it left behind must not be in its way.";

pub(super) const CHECKS: &[Check] = &[
    Check::must(Reinstatement, "session", "RFC 7143 §6.3.5",
        "A leading login with the name and ISID of a session that lives takes its place: the old connection is closed, the new session works.",
        AGAIN,
        |lab| {
            let login = lab.normal();
            let mut old = lab.open(&login)?;
            let mut new = lab.try_open(&login)?;
            expect(old.is_closed(), "the old connection is closed", || "it stays open".to_owned())?;
            old.is_full_feature = false;
            new.settle()
        }),
    Check::must(Reinstatement, "new-tsih", "RFC 7143 §6.3.5, §11.13.3",
        "The session that takes another's place has a TSIH other than 0, and the old one's last command is not its first.",
        AGAIN,
        |lab| {
            let mut login = lab.normal();
            let mut old = lab.open(&login)?;
            old.settle()?;
            login.cmd_sn = 0x4000;
            let mut new = lab.try_open(&login)?;
            old.is_full_feature = false;
            new.settle()?;
            let answer = new.ping(b"number")?;
            expect(new.tsih != 0 && answer.exp_cmd_sn() == new.cmd_sn, format!("a TSIH, and ExpCmdSN {}", new.cmd_sn), || {
                format!("TSIH {}, ExpCmdSN {}", new.tsih, answer.exp_cmd_sn())
            })
        }),
    Check::must(Reinstatement, "another-isid-lives-beside", "RFC 7143 §4.4.3, §6.3.5",
        "A session with another ISID does not disturb one that lives.",
        "One host may have several sessions with a target.",
        |lab| {
            let (mut one, mut two) = (lab.ready(&[])?, lab.ready(&[])?);
            one.run(&Command::new(&[0; 6]))?.good("the first session's command")?;
            two.run(&Command::new(&[0; 6]))?.good("the second session's command").map(|_| ())
        }),
    Check::must(Reinstatement, "another-initiator-lives-beside", "RFC 7143 §4.4.3, §6.3.5",
        "A session of another initiator with the same ISID does not disturb one that lives.",
        "ISIDs are each initiator's own: two hosts often have the same.",
        |lab| {
            let login = lab.normal();
            let mut one = lab.open(&login)?;
            one.settle()?;
            let mut other = login.clone();
            other.initiator = format!("{}.other", lab.options.initiator);
            let Ok(mut two) = lab.try_open(&other) else {
                return not_applicable("the target lets no initiator of another name in");
            };
            two.ping(b"two")?;
            one.run(&Command::new(&[0; 6]))?.good("the first session's command").map(|_| ())
        }),
    Check::must(Reinstatement, "tasks-of-the-old-session-are-gone", "RFC 7143 §6.3.5, §7.6",
        "A write of the old session that waits for data ends with it: the unit takes the new session's commands.",
        AGAIN,
        |lab| {
            let mut login = lab.normal();
            login = login.with(&[("ImmediateData", "No"), ("InitialR2T", "Yes")]);
            let mut old = lab.open(&login)?;
            old.settle()?;
            let mut out = lab.outgoing(&mut old, 4096)?;
            out.command.unsolicited = false;
            old.start(&out.command)?;
            let mut new = lab.try_open(&login)?;
            old.is_full_feature = false;
            new.settle()?;
            let again = lab.outgoing(&mut new, 4096)?;
            new.run(&again.command)?.good("the new session's write")?;
            lab.confirm(&mut new, &again)
        }).tcp(),
    Check::should(Reinstatement, "connection", "RFC 7143 §6.3.4",
        "A login with the ISID, TSIH and CID of a connection that lives takes its place within the session.",
        "Targets of one connection a session are asked to allow it too: it is how an initiator replaces a connection that hangs.",
        |lab| {
            let mut old = lab.ready(&[])?;
            let login = lab.further(&old, old.cid);
            let mut new = lab.try_open(&login)?;
            expect(old.is_closed(), "the old connection is closed", || "it stays open".to_owned())?;
            old.is_full_feature = false;
            new.settle()
        }).tcp(),
    Check::must(Reinstatement, "other-initiators-session", "RFC 7143 §6.3.4, §9.2",
        "A login with another initiator's ISID and TSIH does not get into its session.",
        "It would command under the other's name.",
        |lab| {
            let mut conn = lab.ready(&[])?;
            let mut login = lab.further(&conn, 2);
            login.initiator = format!("{}.other", lab.options.initiator);
            if let Ok(mut joined) = lab.try_open(&login) {
                joined.is_full_feature = false;
                return crate::finding::wrong("the full feature phase", "a refusal");
            }
            conn.run(&Command::new(&[0; 6]))?.good("the session's command").map(|_| ())
        }),
];
