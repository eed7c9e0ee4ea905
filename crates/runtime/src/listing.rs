//! Names and values as a terminal shows them.
//!
//! Other people choose the names of files, users and dataservers. A name may have a line break that
//! makes it look like two lines of a listing, a sequence that moves the cursor over other lines, or
//! letters that turn the direction of the text. Every listing therefore prints names through
//! [`printable`].

/// A text in a form that is safe for a terminal: control characters, and those that print nothing
/// or turn the direction of the text, stand as their escapes, such as `\n` and `\u{202e}`.
pub fn printable(text: &str) -> String {
    let shown = |letter: char| match letter {
        '"' | '\'' => letter.to_string(),
        letter => letter.escape_debug().to_string(),
    };
    text.chars().map(shown).collect()
}

/// Whether a letter can make a line of a listing look like another one: a control character, or a
/// letter that turns the direction of the text.
pub fn is_deceptive(letter: char) -> bool {
    let turns = matches!(
        letter,
        '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    letter.is_control() || turns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_that_change_a_listing_are_shown_as_escapes_and_others_as_they_are() {
        assert_eq!(printable("día 'x' \"y\" /ä"), "día 'x' \"y\" /ä");
        assert_eq!(printable("a\nb\u{1b}[31m\u{9b}"), "a\\nb\\u{1b}[31m\\u{9b}");
        assert_eq!(printable("\u{202e}"), "\\u{202e}");
        for letter in ['\n', '\u{1b}', '\u{9b}', '\u{202e}', '\u{2066}'] {
            assert!(is_deceptive(letter), "{letter:?}");
        }
        assert!(!"Jürgen.Müller\\dom é".chars().any(is_deceptive));
    }
}
