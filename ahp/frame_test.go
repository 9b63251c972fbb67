package ahp_test

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"ahprelay/ahp"
)

func TestPeekReadsTheEnvelope(t *testing.T) {
	tests := []struct {
		in   string
		want ahp.Envelope
	}{
		{`{"jsonrpc":"2.0","id":7,"method":"subscribe","params":{"channel":"ahp-root://"}}`,
			ahp.Envelope{Kind: ahp.Request, ID: []byte("7"), Method: []byte("subscribe"), Channel: []byte("ahp-root://"),
				Params: []byte(`{"channel":"ahp-root://"}`)}},
		{`{"jsonrpc":"2.0","method":"action","params":{"action":{"channel":"x"},"channel":"mock:/1","serverSeq":3}}`,
			ahp.Envelope{Kind: ahp.Notification, Method: []byte("action"), Channel: []byte("mock:/1"),
				Params: []byte(`{"action":{"channel":"x"},"channel":"mock:/1","serverSeq":3}`),
				Said:   ahp.Said{Action: []byte(`{"channel":"x"}`), ServerSeq: []byte("3")}}},
		{`{"jsonrpc":"2.0","id":7,"result":{"snapshot":null}}`,
			ahp.Envelope{Kind: ahp.Response, ID: []byte("7"), Result: []byte(`{"snapshot":null}`)}},
		{`{"id":"a","error":{"code":-32601,"message":"no"}}`,
			ahp.Envelope{Kind: ahp.Response, ID: []byte(`"a"`), Error: []byte(`{"code":-32601,"message":"no"}`)}},
		// A host answers an unreadable request with a null id.
		{`{"id":null,"error":{}}`, ahp.Envelope{Kind: ahp.Response, ID: []byte("null"), Error: []byte("{}")}},
		// A null result is a result: the answer to ping has it. A null error is an error.
		{`{"id":1,"result":null}`, ahp.Envelope{Kind: ahp.Response, ID: []byte("1"), Result: []byte("null")}},
		{`{"id":1,"error":null}`, ahp.Envelope{Kind: ahp.Response, ID: []byte("1"), Error: []byte("null")}},
		// A null id makes a message a request, which hosts answer.
		{`{"id":null,"method":"ping"}`, ahp.Envelope{Kind: ahp.Request, ID: []byte("null"), Method: []byte("ping")}},
		// Peek returns ids as the message writes them.
		{`{"id":-1.50e+3,"method":"m"}`, ahp.Envelope{Kind: ahp.Request, ID: []byte("-1.50e+3"), Method: []byte("m")}},
		{`{"id":"\u0061","method":"m"}`, ahp.Envelope{Kind: ahp.Request, ID: []byte(`"\u0061"`), Method: []byte("m")}},
		// Peek decodes keys and texts.
		{`{"\u006dethod":"\u0070ing","p\u0061rams":{"channe\u006C":"x:\/\ud83d\ude00\n"}}`,
			ahp.Envelope{Kind: ahp.Notification, Method: []byte("ping"), Channel: []byte("x:/😀\n"),
				Params: []byte(`{"channe\u006C":"x:\/\ud83d\ude00\n"}`)}},
		// Peek ignores keys that differ from the known keys in any character.
		{`{"Method":1,"ID":{},"iD":1,"id ":1,"method":"m","params":{"Channel":1,"channels":2}}`,
			ahp.Envelope{Kind: ahp.Notification, Method: []byte("m"), Params: []byte(`{"Channel":1,"channels":2}`), Misspelt: true}},
		// MCP messages have the channel at the top, also in responses.
		{`{"channel":"mcp://a","method":"tools/list","id":1}`,
			ahp.Envelope{Kind: ahp.Request, ID: []byte("1"), Method: []byte("tools/list"), Channel: []byte("mcp://a")}},
		{`{"channel":"mcp://a","result":{},"id":1}`,
			ahp.Envelope{Kind: ahp.Response, ID: []byte("1"), Result: []byte("{}"), Channel: []byte("mcp://a")}},
		// The channel may be in both places, in different spellings.
		{`{"channel":"mcp:\/\/a","method":"m","params":{"channel":"mcp://\u0061"}}`,
			ahp.Envelope{Kind: ahp.Notification, Method: []byte("m"), Channel: []byte("mcp://a"),
				Params: []byte(`{"channel":"mcp://\u0061"}`)}},
		// An empty text differs from an absent member.
		{`{"method":"","params":{"channel":""}}`,
			ahp.Envelope{Kind: ahp.Notification, Method: []byte{}, Channel: []byte{}, Params: []byte(`{"channel":""}`)}},
		// These params have no members: a list, and null.
		{`{"method":"m","params":[{"channel":"x"}]}`,
			ahp.Envelope{Kind: ahp.Notification, Method: []byte("m"), Params: []byte(`[{"channel":"x"}]`)}},
		{`{"method":"m","params":null}`,
			ahp.Envelope{Kind: ahp.Notification, Method: []byte("m"), Params: []byte("null")}},
		// White space may be between any tokens.
		{" \t\r\n{ \"method\" : \"m\" , \"params\" : { \"channel\" : \"x\" } \r} \n",
			ahp.Envelope{Kind: ahp.Notification, Method: []byte("m"), Channel: []byte("x"), Params: []byte(`{ "channel" : "x" }`)}},
		// Keys that Peek does not read may be duplicate, or have lone surrogates.
		{`{"x":1,"x":2,"method":"m","y":{"\ud800":"\udc00\ud800","method":1,"method":2}}`,
			ahp.Envelope{Kind: ahp.Notification, Method: []byte("m")}},
	}
	for _, test := range tests {
		got, err := ahp.Peek([]byte(test.in))
		if err != nil {
			t.Errorf("Peek(%s): %v; want no error", test.in, err)
		} else if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("Peek(%s) (-want +got):\n%s", test.in, diff)
		}
	}
}

func TestPeekReadsTheActionsOrigin(t *testing.T) {
	tests := []struct {
		params string
		want   ahp.Said
	}{
		{`{"channel":"x","action":{"type":"chat/delta","n":1},"serverSeq":7,"origin":{"clientId":"a"}}`,
			ahp.Said{Action: []byte(`{"type":"chat/delta","n":1}`), ServerSeq: []byte("7"), Origin: []byte(`{"clientId":"a"}`), Type: []byte("chat/delta")}},
		// The members may have any order, escapes and white space.
		{`{"origin" : null,"\u0061ction" : {"n":{"type":"no"}, "typ\u0065" : "\u0061/b"} ,"channel":"x"}`,
			ahp.Said{Action: []byte(`{"n":{"type":"no"}, "typ\u0065" : "\u0061/b"}`), Origin: []byte("null"), Type: []byte("a/b")}},
		// Peek accepts any value for these members.
		{`{"channel":"x","action":[{"type":"a"}],"serverSeq":"7","origin":[]}`,
			ahp.Said{Action: []byte(`[{"type":"a"}]`), ServerSeq: []byte(`"7"`), Origin: []byte("[]")}},
		{`{"channel":"x","action":{"type":7}}`, ahp.Said{Action: []byte(`{"type":7}`)}},
		{`{"channel":"x","action":{"type":"\ud800","type":"a"}}`, ahp.Said{Action: []byte(`{"type":"\ud800","type":"a"}`)}},
		{`{"channel":"x","action":{"type":"a","type":"b"}}`, ahp.Said{Action: []byte(`{"type":"a","type":"b"}`), Type: []byte("a")}},
		{`{"channel":"x","action":{"type":""}}`, ahp.Said{Action: []byte(`{"type":""}`), Type: []byte{}}},
		{`{"channel":"x","action":{"\udc00":1,"type":"a"}}`, ahp.Said{Action: []byte(`{"\udc00":1,"type":"a"}`), Type: []byte("a")}},
		// Peek accepts ambiguous members, and returns none of them.
		{`{"channel":"x","action":{},"action":{},"serverSeq":7}`, ahp.Said{}},
		{`{"channel":"x","action":{},"serverSeq":7,"server\u0053eq":7}`, ahp.Said{}},
		{`{"channel":"x","origin":null,"action":{},"origin":{}}`, ahp.Said{}},
		{`{"channel":"x","origin":{},"action":{},"origin":null}`, ahp.Said{}},
		// It also returns none without a channel in params.
		{`{"action":{"type":"a"},"serverSeq":7}`, ahp.Said{}},
		{`[{"channel":"x","action":{}}]`, ahp.Said{}},
	}
	for _, test := range tests {
		for _, top := range []string{"", `,"channel":"x"`} {
			in := `{"method":"action","params":` + test.params + top + `}`
			got, err := ahp.Peek([]byte(in))
			if err != nil {
				t.Errorf("Peek(%s): %v; want no error", in, err)
			} else if diff := cmp.Diff(test.want, got.Said); diff != "" {
				t.Errorf("Peek(%s).Said (-want +got):\n%s", in, diff)
			}
		}
	}
}

// These are all reasons for which Peek refuses a frame. A reason never quotes the frame.
const (
	notObject    = "not a JSON object"
	after        = "bytes after the object"
	badByte      = "unexpected byte"
	badEnd       = "unexpected end"
	badEscape    = "bad escape"
	badControl   = "control character in a string"
	badUTF8      = "invalid UTF-8"
	tooDeep      = "nested too deep"
	loneKey      = "lone surrogate in a key"
	loneID       = `"id" has a lone surrogate`
	loneMethod   = `"method" has a lone surrogate`
	loneChannel  = `"channel" has a lone surrogate`
	twiceID      = `"id" given twice`
	twiceMethod  = `"method" given twice`
	twiceParams  = `"params" given twice`
	twiceResult  = `"result" given twice`
	twiceError   = `"error" given twice`
	twiceChannel = `"channel" given twice`
	badID        = `"id" is not a number, a string or null`
	badMethod    = `"method" is not a string`
	badChannel   = `"channel" is not a string`
	badParams    = `"params" is not an object or array`
	differ       = `"channel" and "params.channel" differ`
	notRPC       = "not a JSON-RPC request, notification or response"
)

var reasons = []string{
	notObject, after, badByte, badEnd, badEscape, badControl, badUTF8, tooDeep, loneKey, loneID, loneMethod, loneChannel,
	twiceID, twiceMethod, twiceParams, twiceResult, twiceError, twiceChannel, badID, badMethod, badChannel, badParams,
	differ, notRPC,
}

// refusals lists frames that Peek must refuse, with ¶ at the offset of the error.
var refusals = []struct{ in, reason string }{
	{`¶`, notObject},
	{` ¶`, notObject},
	{`¶[{"method":"m"}]`, notObject},
	{`¶"x"`, notObject},
	{`¶null`, notObject},
	// The first character is a byte order mark.
	{"¶\ufeff{}", notObject},
	{`{"method":"m"}¶{"method":"m"}`, after},
	{"{\"method\":\"m\"}¶\x00", after},
	// A no-break space is no JSON white space.
	{"{\"method\":\"m\"}¶\u00a0", after},
	{"{¶\v\"method\":\"m\"}", badByte},

	{`{¶`, badEnd},
	{`{"method¶`, badEnd},
	{`{"method":"m"¶`, badEnd},
	{`{"method"¶`, badEnd},
	{`{"x":{"y"¶`, badEnd},
	{`{"x":[1,¶`, badEnd},
	{`{"x":-¶`, badEnd},
	{`{"method":"m",¶}`, badByte},
	{`{"x":[1,¶]}`, badByte},
	{`{"x":{"y":1,¶}}`, badByte},
	{`{"x":{"y":1¶]}`, badByte},
	{`{"x":[1¶}}`, badByte},
	{`{"x":[¶}}`, badByte},
	{`{"x":{¶]}`, badByte},
	{`{"x":{¶1:2}}`, badByte},
	{`{"x":{"y"¶,1}}`, badByte},
	{`{"x":[¶:1]}`, badByte},
	{`{¶'method':"m"}`, badByte},
	{`{¶method:"m"}`, badByte},
	{`{"x":1¶//
}`, badByte},
	{`{"x":¶TRUE}`, badByte},
	{`{"x":¶tru}`, badByte},
	{`{"x":¶nul`, badByte},
	{`{"x":true¶e}`, badByte},
	{`{"x":¶NaN}`, badByte},
	{`{"x":-¶Infinity}`, badByte},
	{`{"x":0¶1}`, badByte},
	{`{"x":¶+1}`, badByte},
	{`{"x":¶.5}`, badByte},
	{`{"x":1.¶}`, badByte},
	{`{"x":1e¶}`, badByte},
	{`{"x":1e+¶}`, badByte},
	{`{"x":0¶x1}`, badByte},
	{"{\"x\":\"a¶\nb\"}", badControl},
	{"{\"x\":\"123456789¶\x00\"}", badControl},
	{"{\"¶\t\":1}", badControl},
	{`{"x":"¶\x"}`, badEscape},
	{`{"x":"¶\u12"}`, badEscape},
	{`{"x":"¶\u12g4"}`, badEscape},
	{`{"x":"¶\`, badEscape},
	{`{"x":"¶\u123`, badEscape},
	// For invalid UTF-8, the offset is the start of the string.
	{"{\"x\":\"¶ab\xff\"}", badUTF8},
	// These are an overlong slash, a surrogate in UTF-8, a code point above the last, and half a
	// rune.
	{"{\"x\":\"¶\xc0\xaf\"}", badUTF8},
	{"{\"x\":\"¶\xed\xa0\x80\"}", badUTF8},
	{"{\"x\":\"¶\xf4\x90\x80\x80\"}", badUTF8},
	{"{\"x\":\"¶12345678\xe2\x82\"}", badUTF8},
	{"{\"x\":¶\xc3\xa9}", badByte},

	{`{¶"\ud800":1,"method":"m"}`, loneKey},
	{`{"method":"m","params":{¶"\ud800\u0061":1}}`, loneKey},
	{`{"method":¶"\udc00\ud800"}`, loneMethod},
	{`{"method":"m","params":{"channel":¶"\ud83dx"}}`, loneChannel},
	{`{"method":"m","channel":¶"\ud83d\n"}`, loneChannel},
	{`{"method":"m","id":¶"\ud800"}`, loneID},

	{`{"id":1,"method":"m",¶"id":1}`, twiceID},
	{`{"method":"m",¶"\u006dethod":"m"}`, twiceMethod},
	// If hosts read the second params, they would read a channel that the relay has not checked.
	{`{"method":"m","params":{"channel":"a"},¶"params":{"channel":"b"}}`, twiceParams},
	{`{"method":"m","params":{"channel":"a",¶"channel":"a"}}`, twiceChannel},
	{`{"method":"m","channel":"a",¶"channel":"a"}`, twiceChannel},
	{`{"id":1,"result":1,¶"result":1}`, twiceResult},
	{`{"id":1,"error":1,¶"error":1}`, twiceError},

	{`{"method":"m","id":¶true}`, badID},
	{`{"method":"m","id":¶[1]}`, badID},
	{`{"method":"m","id":¶{}}`, badID},
	{`{"method":¶null}`, badMethod},
	{`{"method":¶1,"id":1,"result":1}`, badMethod},
	{`{"method":"m","params":{"channel":¶null}}`, badChannel},
	{`{"method":"m","params":{"channel":¶["a"]}}`, badChannel},
	{`{"method":"m","channel":¶1}`, badChannel},
	{`{"method":"m","params":¶"channel"}`, badParams},
	{`{"method":"m","params":¶1}`, badParams},
	{`{"method":"m","params":¶false}`, badParams},
	{`{"method":"m","channel":¶"a","params":{"channel":"b"}}`, differ},
	{`{"method":"m","params":{"channel":""},"channel":¶"b"}`, differ},

	{`¶{}`, notRPC},
	{`¶{"id":1}`, notRPC},
	{`¶{"result":1}`, notRPC},
	{`¶{"error":1}`, notRPC},
	{`¶{"id":1,"result":1,"error":null}`, notRPC},
	{`¶{"id":1,"method":"m","result":1}`, notRPC},
	{`¶{"method":"m","error":null}`, notRPC},
	{`¶{"Method":"m"}`, notRPC},
}

func TestPeekRefusesWithTheOffset(t *testing.T) {
	for _, test := range refusals {
		offset := strings.Index(test.in, "¶")
		in := strings.Replace(test.in, "¶", "", 1)
		_, err := ahp.Peek([]byte(in))
		want := &ahp.FrameError{Offset: offset, Reason: test.reason}
		var got *ahp.FrameError
		if !errors.As(err, &got) || *got != *want {
			t.Errorf("Peek(%q) = %v; want %v", in, err, want)
		}
	}
}

func TestPeekRefusesDeepFrames(t *testing.T) {
	nested := func(levels int, open, shut string) []byte {
		return []byte(`{"method":"m","params":` + strings.Repeat(open, levels) + `1` + strings.Repeat(shut, levels) + `}`)
	}
	for _, kind := range []struct{ open, shut string }{{"[", "]"}, {`{"x":`, "}"}} {
		if frame := nested(9, kind.open, kind.shut); ahp.Deeper(frame, 10) || !ahp.Deeper(frame, 9) {
			t.Errorf("Deeper(%s, 10) = %v; want false, and true for 9", frame, ahp.Deeper(frame, 10))
		}
		// The frame itself is the first level.
		if _, err := ahp.Peek(nested(ahp.MaxDepth-1, kind.open, kind.shut)); err != nil {
			t.Errorf("Peek with MaxDepth times %s: %v; want no error", kind.open, err)
		}
		var refused *ahp.FrameError
		_, err := ahp.Peek(nested(ahp.MaxDepth, kind.open, kind.shut))
		if !errors.As(err, &refused) || refused.Reason != tooDeep {
			t.Errorf("Peek(1+MaxDepth times %s) = %v; want %s", kind.open, err, tooDeep)
		}
	}
	// Objects beside each other are not nested.
	wide := []byte(`{"method":"m","x":[` + strings.Repeat(`[],{},{"y":[]},`, ahp.MaxDepth) + `0]}`)
	if _, err := ahp.Peek(wide); err != nil {
		t.Errorf("Peek with many siblings: %v; want no error", err)
	}
}

func TestFrameErrorText(t *testing.T) {
	const want = "byte 3: nested too deep"
	if got := (&ahp.FrameError{Offset: 3, Reason: tooDeep}).Error(); got != want {
		t.Errorf("Error() = %q; want %q", got, want)
	}
}

func TestKindsHaveNames(t *testing.T) {
	for kind, want := range map[ahp.Kind]string{
		ahp.Request: "request", ahp.Response: "response", ahp.Notification: "notification", 0: "kind 0",
	} {
		if got := kind.String(); got != want {
			t.Errorf("Kind(%d).String() = %q; want %q", uint8(kind), got, want)
		}
	}
}

// TestPeekRealFrames reads frames of a real host. Peek must accept all except batches.
func TestPeekRealFrames(t *testing.T) {
	kinds := map[ahp.Kind]int{}
	for _, frame := range corpus(t) {
		e, err := ahp.Peek(frame)
		if batch := frame[0] == '['; (err != nil) != batch {
			t.Errorf("Peek(%s) = %v; want an error only for a batch", frame, err)
		}
		kinds[e.Kind]++
	}
	for _, kind := range []ahp.Kind{ahp.Request, ahp.Response, ahp.Notification} {
		if kinds[kind] == 0 {
			t.Errorf("the corpus has no %s; want each kind", kind)
		}
	}
}

func TestPeekAllocatesNothing(t *testing.T) {
	frames := corpus(t)
	frames = append(frames, actionFrame(280), actionFrame(512), stateFrame(24<<10))
	for _, frame := range frames {
		if frame[0] == '[' {
			continue
		}
		allocs := testing.AllocsPerRun(10, func() {
			if _, err := ahp.Peek(frame); err != nil {
				t.Error(err)
			}
		})
		if allocs != 0 {
			t.Errorf("Peek(%.200s) allocates %v times; want 0", frame, allocs)
		}
	}
}

// corpus returns frames that a real host and its clients have sent.
func corpus(tb testing.TB) [][]byte {
	tb.Helper()
	all, err := os.ReadFile("testdata/frames.jsonl")
	if err != nil {
		tb.Fatal(err)
	}
	return bytes.Split(bytes.TrimSpace(all), []byte("\n"))
}
