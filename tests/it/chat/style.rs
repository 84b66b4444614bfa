//! Where the lines of a terminal end.

use terminal::style::Style;

#[test]
fn lines_end_between_words_and_keep_their_indentation() {
    let style = Style::of_width(21);
    assert_eq!(
        style.wrap("  one two three four five"),
        "  one two three four\n  five"
    );
    assert_eq!(
        style.wrap("你好你好你好你好你好你好"),
        "你好你好你好你好你好\n你好"
    );
    assert_eq!(style.wrap("a\n\nb"), "a\n\nb");
}
