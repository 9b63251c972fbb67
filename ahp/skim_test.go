package ahp_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"ahprelay/ahp"
)

// skim gives a frame to a Skimmer in pieces. Their lengths are pieces, repeatedly. It returns the
// Skimmer's envelope.
func skim(frame []byte, pieces ...int) (ahp.Envelope, error) {
	var s ahp.Skimmer
	for i := 0; len(frame) > 0; i++ {
		n := min(max(1, pieces[i%len(pieces)]), len(frame))
		_, _ = s.Write(frame[:n])
		frame = frame[n:]
	}
	return s.Envelope()
}

// wantSkim returns what a Skimmer must return for a frame that Peek reads as env.
func wantSkim(frame []byte, env ahp.Envelope) ahp.Envelope {
	channel := []ahp.Member{{Name: "channel"}}
	_ = ahp.Members(frame, channel)
	env.Params, env.Result, env.Error, env.Said, env.Channel, env.Misspelt = nil, nil, nil, ahp.Said{}, nil, false
	if text, ok := ahp.Text(channel[0].Raw); ok {
		env.Channel = []byte(text)
	}
	return env
}

func checkSkim(t interface {
	Fatalf(string, ...any)
}, frame []byte, pieces ...int) {
	env, err := ahp.Peek(frame)
	if err != nil || len(env.ID)+len(env.Method)+len(env.Channel) > 1000 {
		_, _ = skim(frame, pieces...)
		return
	}
	got, err := skim(frame, pieces...)
	if err != nil {
		t.Fatalf("skim(%.300q): %v; want no error", frame, err)
	}
	if diff := cmp.Diff(wantSkim(frame, env), got); diff != "" {
		t.Fatalf("skimmed %.300q (-want +got):\n%s", frame, diff)
	}
}

// TestSkimmerReadsAsPeek draws frames and cuts them into pieces. The Skimmer must return the same
// kind, id, method and channel as Peek.
func TestSkimmerReadsAsPeek(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		checkSkim(t, generated.Draw(t, "frame").text, rapid.SliceOfN(rapid.IntRange(1, 30), 1, 5).Draw(t, "pieces")...)
	})
}

func FuzzSkim(f *testing.F) {
	for _, frame := range corpus(f) {
		f.Add(frame, uint8(1))
	}
	for _, test := range refusals {
		f.Add([]byte(strings.Replace(test.in, "¶", "", 1)), uint8(3))
	}
	f.Fuzz(func(t *testing.T, frame []byte, piece uint8) { checkSkim(t, frame, int(piece), 7) })
}

// TestSkimFindsTheIDAnywhere reads long frames with the id at the start or at the end. The Skimmer
// must find it, must not return a nested id, and must refuse a duplicate or a very long id.
func TestSkimFindsTheIDAnywhere(t *testing.T) {
	long := strings.Repeat(`\\\"{[,\u0022`, 5000)
	nested := `{"id":99,"method":"no","a":[{"id":98,"error":1}],"text":"` + long + `\",\"id\":97"}`
	for in, want := range map[string]string{
		`{"id":7,"result":` + nested + `}`:                                       `response 7`,
		`{"result":` + nested + `,"jsonrpc":"2.0" , "id" : "a\"b"  } `:           `response "a\"b"`,
		`{"error":{"code":1,"data":` + nested + `},"\u0069d":-1.5e3}`:            `response -1.5e3`,
		`{"params":` + nested + `,"method":"x/y","id":null}`:                     `request null x/y`,
		`{"params":` + nested + `,"method":"x/y"}`:                               `notification  x/y`,
		`{"params":` + nested + `,"channel":"mcp://a","id":1,"m\u0065thod":"x"}`: `request 1 x mcp://a`,
		`{"id":7,"result":` + nested + `,"id":8}`:                                `refused`,
		`{"id":7,"result":` + nested + `,"\u0069\u0064":7}`:                      `refused`,
		`{"id":7,"result":` + nested + `,"error":{}}`:                            `refused`,
		`{"id":7,"result":` + nested + `,"method":"x"}`:                          `refused`,
		`{"id":{"id":7},"result":` + nested + `}`:                                `refused`,
		`{"id":"` + long + `","result":1}`:                                       `refused`,
		`{"id":` + nested + `,"result":1}`:                                       `refused`,
		`{"result":` + nested + `}`:                                              `refused`,
		`[{"id":7,"result":` + nested + `}]`:                                     `refused`,
		`{"id":7,"result":` + nested + `}{}`:                                     `refused`,
		`{"id":7,"result":` + nested:                                             `refused`,
		`{"id":7,"result":` + nested + `,}`:                                      `refused`,
		`{` + strings.Repeat(`"id":1,`, 100_000) + `"result":1}`:                 `refused`,
		`{"ID":1,"iD":2,"id ":3,"` + long + `":4,"result":1,"id":5}`:             `response 5`,
	} {
		for _, pieces := range [][]int{{1}, {2, 3}, {1 << 20}} {
			env, err := skim([]byte(in), pieces...)
			got := "refused"
			if err == nil {
				got = strings.TrimRight(strings.Join([]string{env.Kind.String(), string(env.ID), string(env.Method), string(env.Channel)}, " "), " ")
			}
			if got != want {
				t.Errorf("skimmed %.80s…%.40s in pieces of %v: %s, %v; want %s", in, in[max(0, len(in)-40):], pieces, got, err, want)
			}
		}
	}
}

// TestAppendTooLong reads the answer to a frame above the limit. The answer must be an error for
// the same id and channel. It must name the length and the limit.
func TestAppendTooLong(t *testing.T) {
	for _, channel := range []string{"", "mcp://a/b\"c"} {
		env := ahp.Envelope{Kind: ahp.Response, ID: []byte(`"x"`)}
		if channel != "" {
			env.Channel = []byte(channel)
		}
		got, err := ahp.Peek(ahp.AppendTooLong(nil, &env, 200, 100))
		if err != nil || got.Kind != ahp.Response || string(got.ID) != `"x"` || string(got.Channel) != channel ||
			!bytes.Contains(got.Error, []byte(`"the response is 200 bytes long; at most 100 pass","data":{"bytes":200,"limit":100}`)) {
			t.Errorf("AppendTooLong is read as %s: %v; want an error response with both sizes", got.Error, err)
		}
	}
}

func BenchmarkSkim(b *testing.B) {
	frame := []byte(`{"id":7,"result":{"data":"` + strings.Repeat("AbCdEf0123", 100_000) + strings.Repeat(`,"x":{"y":[1,2]}`, 10_000) + `"}}`)
	b.SetBytes(int64(len(frame)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := skim(frame, 32<<10); err != nil {
			b.Fatal(err)
		}
	}
}
