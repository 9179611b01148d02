// SPDX-License-Identifier: MIT OR Apache-2.0
//! What must hold for every text whatsoever? Used by the fuzz target and, for
//! a fixed number of texts, by the ordinary tests.

use debox_condition::{Answer, CallFacts, Expression, compile};

pub fn check(text: &str) {
    match Expression::parse(text) {
        Err(error) => {
            assert!(error.at <= text.len());
            assert!(error.at + error.length <= text.len());
            assert!(text.is_char_boundary(error.at));
            let shown = error.render(text);
            assert!(shown.contains('^'), "{shown}");
        }
        Ok(expression) => {
            let answer = expression.judge(&CallFacts::default());
            for test in expression.tests() {
                assert!(test.at + test.length <= text.len());
            }
            if let Ok(compiled) = compile(&expression, 8) {
                assert!((1..=8).contains(&compiled.parts.len()));
            } else {
                // Nothing that is surely true is refused as never true.
                assert!(
                    answer != Answer::Yes
                        || !matches!(
                            compile(&expression, 8),
                            Err(debox_condition::CompileError::NeverTrue)
                        )
                );
            }
        }
    }
}
