// SPDX-License-Identifier: MIT OR Apache-2.0
//! How do a file's several sources become one table?

use gimli::{BaseAddresses, DebugFrame, EhFrame, LittleEndian};
use object::elf;

use crate::cfi::{Cfi, UNKNOWN};
use crate::elf::Image;
use crate::go::GoTable;
use crate::names::{Functions, soname_is_wrapper};
use crate::span::{Clock, Span, SpanKind};
use crate::spliced::Spliced;
use crate::{END, Error, Options, Row, SIGNAL, Source, Table, WRAPPER};

/// Functions are aligned to 16 bytes: a gap that is shorter is padding, where
/// no call is made, and the row before it goes on. Most functions end and
/// begin alike, so this halves the table.
const PADDING_MAX: u32 = 15;

/// How much code is searched for signal trampolines that have no call-frame
/// information, as musl's.
const TRAMPOLINE_SEARCH_MAX: u32 = 16 << 20;

/// Adds the parts of `new` that nothing in `base` covers. `base` is sorted and
/// without overlaps, and so is the result.
fn overlay(base: Vec<Span>, mut new: Vec<Span>) -> Vec<Span> {
    new.sort_by_key(|span| (span.start, span.end));
    let mut merged = Vec::with_capacity(base.len() + new.len());
    let mut base = base.into_iter().peekable();
    let mut covered = 0u32;
    for mut span in new {
        loop {
            // What is covered already, by base or by an earlier one of `new`.
            span.start = span.start.max(covered);
            if span.start >= span.end {
                break;
            }
            match base.peek() {
                Some(next) if next.start <= span.start => {
                    covered = covered.max(next.end);
                    merged.extend(base.next());
                }
                Some(next) if next.start < span.end => {
                    merged.push(Span {
                        end: next.start,
                        ..span
                    });
                    covered = next.start;
                }
                _ => {
                    covered = span.end;
                    merged.push(span);
                    break;
                }
            }
        }
    }
    merged.extend(base);
    merged
}

/// The rows so far.
struct Writer {
    rows: Vec<Row>,
    max: usize,
}

impl Writer {
    /// What holds from `pc` on. An earlier row for the same place is replaced,
    /// one that says the same goes on.
    fn put(&mut self, pc: u32, row: Row) -> Result<(), Error> {
        if self.rows.last().is_some_and(|last| last.pc == pc) {
            self.rows.pop();
        }
        let same = |last: &Row| {
            (last.cfa_words, last.rbp_words, last.kind) == (row.cfa_words, row.rbp_words, row.kind)
        };
        if self.rows.last().is_some_and(same) {
            return Ok(());
        }
        if self.rows.len() >= self.max {
            return Err(Error::Limit {
                what: "the number of rows",
                value: self.max as u64 + 1,
                limit: self.max as u64,
            });
        }
        self.rows.push(Row { pc, ..row });
        Ok(())
    }
}

pub fn table<S: Source + ?Sized>(source: &S, options: &Options) -> Result<Table, Error> {
    let clock = Clock::new(options.max_cpu);
    let image = Image::open(source, options)?;
    let max = options.max_rows;

    let eh_bytes = eh_frame(&image)?;
    let mut bases = BaseAddresses::default();
    if let Some((address, _)) = eh_bytes {
        bases = bases.set_eh_frame(address);
    }
    if let Some(address) = image.eh_frame_hdr {
        bases = bases.set_eh_frame_hdr(address);
    }
    if let Some(text) = image.section(".text") {
        bases = bases.set_text(text.address);
    }
    if let Some(got) = image.section(".got") {
        bases = bases.set_got(got.address);
    }
    let debug_bytes = debug_frame(&image)?;
    let mut eh_section = EhFrame::new(
        eh_bytes.as_ref().map_or(&[][..], |(_, bytes)| bytes),
        LittleEndian,
    );
    eh_section.set_address_size(8);
    let mut debug_section = DebugFrame::new(&debug_bytes, LittleEndian);
    debug_section.set_address_size(8);
    let mut eh = Cfi::new(eh_section, bases.clone());
    let mut debug = Cfi::new(debug_section, bases);
    let go = GoTable::find(&image, max)?;

    let static_binary = !image.has_needed
        && !image.has_interpreter
        && (image.elf_type == elf::ET_EXEC || image.is_pie);
    let spliced = Spliced::find(&image)?;
    // A copy has a name of its own.
    let original = spliced.as_ref().map(|copy| {
        let name = copy.path.rsplit(|byte| *byte == b'/').next();
        String::from_utf8_lossy(name.unwrap_or_default()).into_owned()
    });
    let file_name = original.as_deref().or(options.file_name.as_deref());
    let own_name = image.soname.as_deref().or(file_name);
    let whole = own_name.is_some_and(soname_is_wrapper);
    // Symbols tell which functions of a static program are libc's, and which
    // C functions of a Go program are its runtime's glue.
    let symbols = if !whole && (static_binary || go.is_some()) {
        image.functions(elf::SHT_SYMTAB)?
    } else {
        Vec::new()
    };
    clock.check()?;
    let functions = Functions::new(&symbols, |name| {
        let glue = go.is_some() && crate::names::go_function_is_wrapper(name);
        glue || static_binary && options.libc_names.is_libc(name)
    });

    let mut spans = overlay(
        Vec::new(),
        eh.spans(&image, SpanKind::EhFrame, max, &clock)?,
    );
    if let Some(go) = &go {
        spans = overlay(spans, go.spans(&image, &clock)?);
    }
    spans = overlay(
        spans,
        debug.spans(&image, SpanKind::DebugFrame, max, &clock)?,
    );
    let signal = trampolines(&image, &spans, static_binary || whole)?;
    spans = overlay(spans, signal);
    if static_binary {
        let named = functions
            .spans()
            .iter()
            .filter_map(|&(start, end, _)| Span::new(&image, start, end, SpanKind::Symbol));
        spans = overlay(spans, named.collect());
    }
    clock.check()?;
    for span in &mut spans {
        if !matches!(span.kind, SpanKind::Go(_)) {
            let address = span.delta.wrapping_add(u64::from(span.start));
            span.wrapper = whole || functions.is_wrapper(address);
        }
    }

    let mut writer = Writer {
        rows: Vec::new(),
        max,
    };
    let mut spans = spans.iter().peekable();
    let file_flag = if whole { WRAPPER } else { 0 };
    let unknown = Row {
        kind: UNKNOWN.kind | file_flag,
        ..UNKNOWN
    };
    let end = Row {
        pc: 0,
        cfa_words: 0,
        rbp_words: 0,
        kind: END,
    };
    for segment in &image.executable {
        let (from, to) = (segment.offset, segment.offset + segment.len);
        let mut at = from;
        while let Some(span) = spans.next_if(|span| span.start < to) {
            let gap = span.start - at;
            if gap > PADDING_MAX || at == from && gap > 0 {
                writer.put(at, unknown)?;
            }
            let flag = if span.wrapper { WRAPPER } else { 0 };
            let offset_of = |address: u64| address.wrapping_sub(span.delta);
            let unknown = Row {
                kind: UNKNOWN.kind | flag,
                ..UNKNOWN
            };
            writer.put(span.start, unknown)?;
            let mut reached = span.start;
            let emit = |address: u64, row: Row| {
                // Rows before the part that is left are replaced by later ones.
                let pc = offset_of(address);
                let pc = pc.max(u64::from(span.start));
                if pc >= u64::from(span.end) || pc < u64::from(reached) {
                    return Ok(());
                }
                reached = pc as u32;
                let kind = row.kind | flag;
                writer.put(pc as u32, Row { kind, ..row })
            };
            let signal = Row {
                kind: SIGNAL | flag,
                ..end
            };
            let complete = match span.kind {
                SpanKind::EhFrame(fde) => eh.rows(fde, &clock, emit)?,
                SpanKind::DebugFrame(fde) => debug.rows(fde, &clock, emit)?,
                SpanKind::Go(index) => match &go {
                    Some(go) => go.rows(index, &clock, emit)?,
                    None => false,
                },
                SpanKind::Trampoline => {
                    writer.put(span.start, signal)?;
                    true
                }
                SpanKind::Symbol => true,
            };
            if !complete {
                // Damaged: how far its last row held is not known.
                writer.put(reached, unknown)?;
            }
            at = span.end;
        }
        if to - at > PADDING_MAX || at == from {
            writer.put(at, unknown)?;
        }
        writer.put(to, end)?;
    }
    if let Some(copy) = &spliced {
        let of_file = writer.rows.clone();
        for (row, to) in copy.rows(&of_file) {
            writer.put(row.pc, row)?;
            writer.put(to, end)?;
        }
    }
    writer.rows.shrink_to_fit();
    Ok(Table {
        rows: writer.rows,
        build_id: image.build_id.clone(),
        soname: image.soname.clone(),
        wrapper_known: go.is_some() || !static_binary || !symbols.is_empty(),
        go: go.is_some(),
        static_binary,
    })
}

/// Address and content of .eh_frame: through its section header, or, where
/// those were stripped, through the segment that points to it.
fn eh_frame<S: Source + ?Sized>(image: &Image<'_, S>) -> Result<Option<(u64, Vec<u8>)>, Error> {
    if let Some(section) = image.section(".eh_frame") {
        return match image.content(&section) {
            Ok(bytes) => Ok(Some((section.address, bytes))),
            Err(Error::Malformed { .. }) => Ok(None),
            Err(error) => Err(error),
        };
    }
    let Some(header) = image.eh_frame_hdr else {
        return Ok(None);
    };
    // Version 1, .eh_frame's address as 4 bytes relative to themselves: the
    // only form that linkers write.
    let Some(at) = image.file_offset(header) else {
        return Ok(None);
    };
    let bytes = match image.read(at, 8) {
        Ok(bytes) if bytes[..2] == [1, gimli::DW_EH_PE_pcrel.0 | gimli::DW_EH_PE_sdata4.0] => bytes,
        Ok(_) | Err(Error::Malformed { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let relative = crate::elf::half(&bytes, 4).unwrap_or(0) as i32;
    let address = header
        .wrapping_add(4)
        .wrapping_add_signed(i64::from(relative));
    let Some((offset, len)) = image.mapped_from(address) else {
        return Ok(None);
    };
    Ok(Some((address, image.read(offset, len)?)))
}

fn debug_frame<S: Source + ?Sized>(image: &Image<'_, S>) -> Result<Vec<u8>, Error> {
    let bytes = if let Some(section) = image.section(".debug_frame") {
        image.content(&section)
    } else if let Some(section) = image.section(".zdebug_frame") {
        image.zdebug_content(&section)
    } else {
        return Ok(Vec::new());
    };
    bytes.or_else(|error| match error {
        Error::Malformed { .. } => Ok(Vec::new()),
        error => Err(error),
    })
}

/// `mov $15, %eax; syscall` (rt_sigreturn) in the gaps between spans, in the
/// two encodings that compilers and libcs use.
fn trampolines<S: Source + ?Sized>(
    image: &Image<'_, S>,
    spans: &[Span],
    likely: bool,
) -> Result<Vec<Span>, Error> {
    const LONG: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
    const SHORT: [u8; 7] = [0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05];
    let mut found = Vec::new();
    if !likely {
        return Ok(found);
    }
    for segment in &image.executable {
        if segment.len > TRAMPOLINE_SEARCH_MAX {
            continue;
        }
        let bytes = image.read(segment.offset.into(), segment.len.into())?;
        for (at, pair) in bytes.windows(2).enumerate() {
            if pair != [0x0f, 0x05] {
                continue;
            }
            let end = at + 2;
            let start = if bytes[..end].ends_with(&LONG) {
                end - LONG.len()
            } else if bytes[..end].ends_with(&SHORT) {
                end - SHORT.len()
            } else {
                continue;
            };
            let offset = segment.offset + start as u32;
            let known = spans.partition_point(|span| span.start <= offset);
            if known.checked_sub(1).is_some_and(|i| spans[i].end > offset) {
                continue;
            }
            let address = segment.address + start as u64;
            let end = segment.address + end as u64;
            found.extend(Span::new(image, address, end, SpanKind::Trampoline));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: u32, end: u32, number: usize) -> Span {
        Span {
            start,
            end,
            delta: 0,
            kind: SpanKind::Go(number),
            wrapper: false,
        }
    }

    #[test]
    fn better_sources_are_not_covered() {
        let base = overlay(
            Vec::new(),
            vec![span(20, 30, 1), span(10, 25, 0), span(40, 50, 2)],
        );
        let all = overlay(
            base,
            vec![
                span(0, 60, 3),
                span(5, 12, 4),
                span(28, 45, 5),
                span(70, 80, 6),
            ],
        );
        let shape: Vec<(u32, u32, usize)> = all
            .iter()
            .map(|span| match span.kind {
                SpanKind::Go(number) => (span.start, span.end, number),
                _ => unreachable!(),
            })
            .collect();
        assert_eq!(
            shape,
            [
                (0, 10, 3),
                (10, 25, 0),
                (25, 30, 1),
                (30, 40, 3),
                (40, 50, 2),
                (50, 60, 3),
                (70, 80, 6)
            ]
        );
    }

    #[test]
    fn rows_merge_and_replace() {
        let mut writer = Writer {
            rows: Vec::new(),
            max: 2,
        };
        let row = |kind| Row {
            pc: 0,
            cfa_words: 0,
            rbp_words: 0,
            kind,
        };
        writer.put(0, row(1)).unwrap();
        writer.put(8, row(2)).unwrap();
        writer.put(8, row(1)).unwrap();
        writer.put(9, row(1)).unwrap();
        writer.put(12, row(3)).unwrap();
        let shape: Vec<(u32, u8)> = writer.rows.iter().map(|row| (row.pc, row.kind)).collect();
        assert_eq!(shape, [(0, 1), (12, 3)]);
        let error = writer.put(13, row(4)).unwrap_err().to_string();
        assert!(error.contains("limit of 2"), "{error}");
    }
}
