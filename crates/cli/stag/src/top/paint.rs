//! How the live view of `stag top` marks its parts: by colours, or without any where the user wants
//! none (NO_COLOR). No part is told by its colour alone.

use ratatui::style::{Color, Modifier, Style};

#[derive(Clone, Copy, Debug)]
pub struct Paint {
    pub colours: bool,
}

impl Paint {
    /// What the environment asks for (no-color.org).
    pub fn of_environment() -> Self {
        Self { colours: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) }
    }

    fn coloured(self, colour: Color) -> Style {
        if self.colours { Style::new().fg(colour) } else { Style::new() }
    }

    pub fn title(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub fn heading(self) -> Style {
        self.coloured(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    pub fn chosen(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    pub fn trouble(self) -> Style {
        self.coloured(Color::Red).add_modifier(Modifier::BOLD)
    }

    pub fn line(self) -> Style {
        self.coloured(Color::Green)
    }

    pub fn key(self) -> Style {
        self.coloured(Color::Yellow).add_modifier(Modifier::BOLD)
    }
}
