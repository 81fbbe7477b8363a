//! Calls that people may write and that mean nothing, or little: what they give, and what they are told.

use super::*;

/// Filters that follow each other must all hold, also those of one field: there may be no such block.
#[test]
fn any_two_filters_select_what_both_do() {
    let mut b = bench(81, 400);
    let (truth, mut r) = (Truth::of(&b.w), Random(81 * 77));
    let all = names();
    let filters = all.iter().filter(|n| n.of == "AllocationList" && n.name.starts_with("only_"));
    let cases: Vec<(String, Vec<(u64, u64)>)> = filters
        .filter_map(|n| {
            let (arg, selected) = case(&b, &truth, &mut r, &n.name)?;
            Some((format!("{}({arg})", n.name), selected))
        })
        .collect();
    assert!(cases.len() > 60, "{}", cases.len());
    let mut some = 0;
    for (first, of_first) in &cases {
        for (second, of_second) in &cases {
            let both: Vec<_> = of_first.iter().filter(|m| of_second.contains(m)).copied().collect();
            let code = format!("allocations().{first}.{second}");
            assert_eq!(b.blocks(&code), both, "{code}");
            some += usize::from(!both.is_empty());
        }
    }
    assert!(some > 500, "{some} pairs have blocks in common");
}

/// Returns the message of an error.
#[track_caller]
fn refused(b: &mut Bench, code: &str) -> String {
    b.script.run(code).map(|_| ()).expect_err(code).message
}

#[test]
fn durations_and_moments_are_compared_with_what_they_are() {
    let mut b = bench(82, 300);
    for code in ["s(1) < 5", "5 > s(1)", "s(1) >= 0.5", "0.5 <= s(1)"] {
        let said = refused(&mut b, code);
        assert!(said.contains("give the number a unit, as in s("), "{code}: {said}");
    }
    const ENDS: &str = "let kept = allocations().only_leaked()[0].deallocated_at(); \
                        let freed = allocations().only_temporary()[0].deallocated_at(); let d = freed.unwrap(); ";
    for (code, is) in [
        ("kept == ()", true),
        ("kept != ()", false),
        ("freed == ()", false),
        ("() != freed", true),
        ("freed == d", true),
        ("d == freed", true),
        ("kept == d", false),
        ("kept == freed", false),
        ("freed == freed", true),
        ("freed < d", false),
        ("freed <= d", true),
        ("d - ns(1) < freed", true),
        ("freed > d - ns(1)", true),
        ("freed >= freed", true),
    ] {
        assert_eq!(b.lines(&format!("{ENDS} println({code});")), [is.to_string()], "{code}");
    }
    for code in ["kept < d", "d >= kept", "kept > freed"] {
        let said = refused(&mut b, &format!("{ENDS} {code}"));
        assert!(said.contains("there is no duration (None)"), "{code}: {said}");
    }
}

#[test]
fn errors_speak_of_what_is_in_the_script() {
    let mut b = bench(83, 200);
    for (code, says) in [
        (
            "allocations().only_matching_backtraces(allocations()[0])",
            "or arrays of these, and not Allocation",
        ),
        ("allocations().only_matching_backtraces(1.5)", "and not Float"),
        (
            "allocations().only_from_maps(allocations()[0].deallocated_at())",
            "and not Option<Duration>",
        ),
        ("table(5)", "and not Integer"),
        ("table([1])", "one of it is of the type Integer"),
        ("table(allocations(), [])", "the list of columns is empty"),
        ("throw allocations()", "thrown: AllocationList"),
        ("throw [s(1)]", "thrown: [1s]"),
        (
            "allocations().only_passing_through_function(\"(\")",
            "only_passing_through_function: error: unclosed group",
        ),
        (
            "maps().only_passing_through_function(\"(\")",
            "only_passing_through_function: error: unclosed group",
        ),
    ] {
        let said = refused(&mut b, code);
        assert!(said.contains(says) && !said.contains("--"), "{code}: {said}");
    }
    // Errors that come only when the list is computed have the same words.
    for (list, says) in [
        ("only_thread(\"nope\")", "only_thread nope: no thread of that id or name"),
        ("only_thread(\"nope\")", "`allocations().by_thread()` lists them"),
        ("only_since(\"nope\")", "only_since: no mark is called \"nope\""),
        ("only_between(\"a,b\")", "only_between: no mark"),
        ("only_part(9)", "only_part 9: the recording has 2; `allocations().report()` lists"),
        ("only_from_maps(9)", "only_from_maps: the recording does not tell of mappings"),
        ("only(\"alive-at\", \"1h\")", "only_alive_at: 1h 00m is after the end"),
        ("only(\"marker\", \"9\")", "only_with_marker: no mark is called \"#9\""),
        (
            "only(\"readable\", \"yes\")",
            "only(\"readable\") can't be used: it is a property of mappings; maps() has it",
        ),
        ("only(\"--arena\", \"x\")", "only(\"arena\"): \"x\" is neither main nor non-main"),
    ] {
        let code = format!("allocations().{list}.len()");
        let said = refused(&mut b, &code);
        assert!(said.contains(says) && !said.contains("--"), "{code}: {said}");
    }
    let said = refused(&mut b, "maps().only(\"lifetime\", \"x\")");
    assert!(said.starts_with("only(\"lifetime\"): \"x\" is no kind"), "{said}");
    // Reports advise what a script can do, and name their filter as code that selects the same.
    let lines = b.lines(
        "println(allocations().report(1)); println(allocations().only_larger(99999).report());",
    );
    assert!(lines[0].contains("(report(0) shows all)"), "{}", lines[0]);
    assert!(lines[1].contains(".only(\"min-size\", \"100000\"): the figures"), "{}", lines[1]);
    assert!(lines[1].contains("(report(\"peak-size\") shows what was)"), "{}", lines[1]);
    assert!(lines.iter().all(|l| !l.contains("--")), "{lines:?}");
    // A caught assert prints the message that it was given.
    let caught =
        b.lines("try { assert(1 == 2, \"too many\") } catch (e) { println(e); println(`${e}!`); }");
    assert_eq!(caught, ["too many", "too many!"]);
    let names = b.lines("for p in [\"/a/b\", \"/a\", \"/\", \"a/b\"] { println(dirname(p)); }");
    assert_eq!(names, ["/a", "/", "/", "a"]);
}

/// A long object is laid out once, and not for each that it is a part of.
#[test]
fn long_objects_are_printed_in_lines_of_their_parts() {
    let mut b = bench(84, 200);
    let code = "let inner = []; for i in 0..300 { inner.push(#{ a: i, text: \"ü\" + i }); } \
                println([#{ first: inner, second: [1, 2] }]);";
    let lines = b.lines(code);
    let text: Vec<&str> = lines[0].lines().collect();
    assert_eq!(text.len(), 1 + 1 + 1 + 300 + 1 + 1 + 1 + 1, "{text:?}");
    assert_eq!(text[3], "      #{\"a\": 0, \"text\": \"ü0\"},");
    assert_eq!(
        &text[302..],
        ["      #{\"a\": 299, \"text\": \"ü299\"}", "    ],", "    \"second\": [1, 2]", "  }", "]"]
    );
}
