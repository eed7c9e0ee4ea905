//! The module as Python finds it: a library with one entry, and stubs that name what it has.

/// Every name that the module gives to Python has a stub, without which an editor knows nothing
/// of it.
#[test]
fn every_class_and_function_of_the_module_has_a_stub() {
    let (source, stubs) =
        (include_str!("../src/lib.rs"), include_str!("../evenfall/_evenfall.pyi"));
    let registered = source.matches("module.add_class::<").count();
    let functions = source.matches("wrap_pyfunction!").count();
    // Names that begin with a line are for type checkers alone.
    let is_class = |line: &&str| line.starts_with("class ") && !line.starts_with("class _");
    assert_eq!(stubs.lines().filter(is_class).count(), registered);
    assert_eq!(stubs.lines().filter(|line| line.starts_with("def ")).count(), functions);
}
