package ahp_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"ahprelay/ahp"
	_ "ahprelay/test/fixedseed"
)

// TestPeekReadsAsTheReference draws frames in any form. Peek must read each as reference does, and
// refuse exactly those that reference refuses or that have lone surrogates.
func TestPeekReadsAsTheReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		frame := generated.Draw(t, "frame")
		got, err := ahp.Peek(frame.text)
		want, ok := reference(frame.text)
		ok = ok && !frame.lone
		if (err == nil) != ok {
			t.Fatalf("Peek(%s) = %v; want refused: %v", frame.text, err, !ok)
		}
		if !ok {
			return
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("Peek(%s) (-want +got):\n%s", frame.text, diff)
		}
		// Reading the params alone must give the same channel.
		channel := []ahp.Member{{Name: "channel"}}
		if strings.HasPrefix(string(got.Params), "{") {
			if err := ahp.Members(got.Params, channel); err != nil {
				t.Fatalf("Members(%s): %v; want no error", got.Params, err)
			}
		}
		if text, ok := ahp.Text(channel[0].Raw); ok && text != string(got.Channel) {
			t.Fatalf("Peek(%s) reads the channel %q, and Members %q; want the same", frame.text, got.Channel, text)
		}
	})
}

// TestTruncatedFrameIsRefused cuts frames at each byte. Peek must refuse them.
func TestTruncatedFrameIsRefused(t *testing.T) {
	for _, frame := range corpus(t) {
		for n := range frame {
			if e, err := ahp.Peek(frame[:n]); err == nil {
				t.Errorf("Peek(%s) = %+v; want a refusal", frame[:n], e)
			}
		}
	}
}

// TestStringsAreCheckedAtEachAlignment puts a byte at each distance from a string's start and end.
// Peek must find an invalid byte at each, although it reads several bytes at a time.
func TestStringsAreCheckedAtEachAlignment(t *testing.T) {
	for before := range 17 {
		for after := range 17 {
			for _, test := range []struct {
				in string
				ok bool
			}{
				{"\x00", false}, {"\x1f", false}, {"\x7f", true}, {"\x80", false}, {"é", true},
				{`\!`, false}, {`\\`, true}, {`"!`, false},
			} {
				frame := fmt.Sprintf(`{"method":"m","x":"%s%s%s"}`, strings.Repeat("x", before), test.in, strings.Repeat("x", after))
				if _, err := ahp.Peek([]byte(frame)); (err == nil) != test.ok {
					t.Errorf("Peek(%q) = %v; want refused: %v", frame, err, !test.ok)
				}
			}
		}
	}
}

// TestOnlyTheseEscapesAreRead puts each byte after a backslash. Peek must accept exactly those that
// JSON permits.
func TestOnlyTheseEscapesAreRead(t *testing.T) {
	for c := range 256 {
		frame := append([]byte(`{"method":"m","x":"\`), byte(c))
		frame = append(frame, `00e9"}`...)
		_, err := ahp.Peek(frame)
		if allowed := strings.IndexByte("\"\\/bfnrtu", byte(c)) >= 0; (err == nil) != allowed {
			t.Errorf("Peek(%q) = %v; want refused: %v", frame, err, !allowed)
		}
	}
}

// A genFrame is a random JSON text. lone is a fact that reference cannot find out.
type genFrame struct {
	text []byte
	lone bool // a lone surrogate is in a text that Peek decodes
}

var generated = rapid.Custom(func(t *rapid.T) genFrame {
	w := frameWriter{t: t}
	w.frame()
	return genFrame{w.out.Bytes(), w.lone}
})

// A frameWriter writes a random JSON text to out.
type frameWriter struct {
	t    *rapid.T
	out  bytes.Buffer
	lone bool
}

// chance returns true in about one of n calls.
func (w *frameWriter) chance(n int) bool {
	return rapid.IntRange(1, n).Draw(w.t, "chance") == n
}

func (w *frameWriter) pick(from ...string) string {
	return rapid.SampledFrom(from).Draw(w.t, "pick")
}

// put writes a token, and sometimes white space after it.
func (w *frameWriter) put(token string) {
	w.out.WriteString(token)
	if w.chance(6) {
		w.out.WriteString(w.pick(" ", "\n", "\t", "\r", "  \r\n\t "))
	}
}

// frame writes an object, mostly with the members of a JSON-RPC message.
func (w *frameWriter) frame() {
	shape := rapid.SampledFrom([][]string{
		{"jsonrpc", "id", "method", "params"},
		{"method", "params", "extra"},
		{"jsonrpc", "id", "result"},
		{"channel", "id", "method", "params"},
		{"id", "error", "channel"},
		{},
	}).Draw(w.t, "shape")
	keys := append([]string(nil), shape...)
	for w.chance(5) {
		keys = append(keys, w.pick("id", "method", "params", "result", "error", "channel", "Method", "ID", "", "__proto__"))
	}
	keys = rapid.Permutation(keys).Draw(w.t, "keys")
	w.object(keys, true, func(key string) {
		switch key {
		case "id":
			w.odd(func() { w.id() })
		case "method":
			w.odd(func() { w.text(w.pick("ping", "action", "subscribe", ""), true) })
		case "channel":
			w.odd(func() { w.channel() })
		case "params":
			w.odd(func() { w.params() })
		default:
			w.value(3)
		}
	})
}

// odd mostly calls usual, and sometimes writes a random value instead.
func (w *frameWriter) odd(usual func()) {
	if w.chance(12) {
		w.scalar(true)
		return
	}
	usual()
}

func (w *frameWriter) id() {
	if w.chance(4) {
		w.text(w.pick("a", "1", "", "é/😀"), true)
		return
	}
	w.put(w.pick("1", "0", "-0", "1.50", "1e3", "12345678901234567890", "null"))
}

func (w *frameWriter) channel() {
	w.text(w.pick("mcp://a", "mcp://a", "ahp-root://", "mock:/é", ""), true)
}

func (w *frameWriter) params() {
	keys := []string{"action", "serverSeq"}
	if !w.chance(4) {
		keys = append(keys, "channel")
	}
	for w.chance(6) {
		keys = append(keys, w.pick("channel", "Channel", "action", "params"))
	}
	w.object(rapid.Permutation(keys).Draw(w.t, "keys"), true, func(key string) {
		if key == "channel" {
			w.odd(func() { w.channel() })
			return
		}
		w.value(3)
	})
}

// object writes an object with these keys. read is whether Peek decodes the keys.
func (w *frameWriter) object(keys []string, read bool, value func(key string)) {
	w.put("{")
	for i, key := range keys {
		if i > 0 {
			w.put(",")
		}
		w.text(key, read)
		w.put(":")
		value(key)
	}
	w.put("}")
}

// value writes a random value with at most this many levels, and rarely a value near MaxDepth.
func (w *frameWriter) value(levels int) {
	switch kind := rapid.IntRange(0, 40).Draw(w.t, "kind"); {
	case kind == 33: // not the last, because small numbers are drawn more often
		n := ahp.MaxDepth - rapid.IntRange(0, 4).Draw(w.t, "missing")
		w.put(strings.Repeat(`[`, n) + strings.Repeat(`]`, n))
	case kind == 34:
		n := ahp.MaxDepth - rapid.IntRange(0, 4).Draw(w.t, "missing")
		w.put(strings.Repeat(`{"":`, n) + `0` + strings.Repeat(`}`, n))
	case kind > 20 || levels == 0:
		w.scalar(false)
	case kind > 10:
		w.put("[")
		for i := range rapid.IntRange(0, 3).Draw(w.t, "elements") {
			if i > 0 {
				w.put(",")
			}
			w.value(levels - 1)
		}
		w.put("]")
	default:
		keys := rapid.SliceOfN(rapid.SampledFrom([]string{"id", "method", "channel", "a"}), 0, 4).Draw(w.t, "keys")
		w.object(keys, false, func(string) { w.value(levels - 1) })
	}
}

func (w *frameWriter) scalar(read bool) {
	if w.chance(2) {
		w.text(rapid.String().Draw(w.t, "string"), read)
		return
	}
	w.put(w.pick("null", "true", "false", "0", "-1.5E+300", "1e-7", "[]", "{}", `[{"channel":1}]`))
}

// text writes a JSON string, sometimes with escapes and lone surrogates. read is whether Peek
// decodes the string.
func (w *frameWriter) text(text string, read bool) {
	var raw strings.Builder
	raw.WriteByte('"')
	escapeAll, escapeSome := w.chance(10), w.chance(4)
	for _, r := range text {
		switch {
		case escapeAll || escapeSome && w.chance(3):
			raw.WriteString(escaped(r, w.chance(2)))
		case r == '/' && w.chance(4):
			raw.WriteString(`\/`)
		case r == '"', r == '\\', r < ' ':
			raw.WriteString(escaped(r, true))
		default:
			raw.WriteRune(r)
		}
	}
	if w.chance(100) {
		raw.WriteString(w.pick(`\ud800`, `\uDFFF`, `\udc00\ud800`, `\ud800x`, `\ud800\u0061`, `\ud83d\ud83d\ude00`))
		w.lone = w.lone || read
	}
	w.put(raw.String() + `"`)
}

// escaped returns a rune as \u escapes.
func escaped(r rune, upper bool) string {
	format := `\u%04x`
	if upper {
		format = `\u%04X`
	}
	if r < 0x10000 {
		return fmt.Sprintf(format, r)
	}
	r -= 0x10000
	return fmt.Sprintf(format+format, 0xd800+r>>10, 0xdc00+r&0x3ff)
}
