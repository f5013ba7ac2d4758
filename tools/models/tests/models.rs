//! Every model, in all orders within its bound.

use models::{exclusion, mailbox, stripes};

macro_rules! models {
    ($($part:ident: $($model:ident)*),*) => {
        $($(
            #[test]
            fn $model() {
                $part::$model();
            }
        )*)*
    };
}

models! {
    stripes:
        commands_of_one_word_take_turns
        commands_of_several_words_take_turns
        a_command_behind_one_that_waits_has_its_turn
        a_reader_sees_a_change_whole_or_learns_of_it
        a_command_that_stops_waiting_keeps_nobody,
    exclusion:
        a_plain_write_and_an_atomic_command_take_turns
        two_atomic_commands_take_turns,
    mailbox:
        mail_wakes_a_core_that_falls_asleep
        late_mail_reaches_no_other_owner
}
