//! The environment beside a settings file.

use super::*;

#[test]
fn variable_that_is_no_text_is_named_when_it_is_ours_and_left_alone_when_not() {
    use std::os::unix::ffi::OsStringExt;
    let of = |name: &str| (OsString::from(name), OsString::from_vec(vec![b'a', 0xff]));
    assert_eq!(overrides_of([of("LESSOPEN")].into_iter()).unwrap(), []);
    let error = overrides_of([of("EVENFALL_RUN__DIR")].into_iter()).unwrap_err().to_string();
    assert!(error.contains("EVENFALL_RUN__DIR") && error.contains("UTF-8"), "{error}");
}
