//! The header is what the sources say. `EVENFALL_WRITE_HEADER=1` writes it.

use std::path::Path;

#[test]
fn the_header_is_made_of_the_sources() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(here.join("cbindgen.toml")).unwrap();
    // The modules one by one, so that no `cargo metadata` of the workspace is needed.
    let modules = ["status", "feed", "root", "publisher", "lib"];
    let builder = modules.iter().fold(cbindgen::Builder::new().with_config(config), |all, name| {
        all.with_src(here.join(format!("src/{name}.rs")))
    });
    let mut made = Vec::new();
    builder.generate().unwrap().write(&mut made);
    let made = String::from_utf8(made).unwrap().replace("# Safety", "The caller promises:");
    let header = here.join("include/evenfall.h");
    if std::env::var_os("EVENFALL_WRITE_HEADER").is_some() {
        std::fs::write(&header, &made).unwrap();
    }
    let kept = std::fs::read_to_string(&header).unwrap();
    assert_eq!(
        kept, made,
        "the header is older than the sources: EVENFALL_WRITE_HEADER=1 cargo test -p evenfall-c \
         --test header"
    );
}
