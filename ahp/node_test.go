package ahp_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"ahprelay/ahp"
)

// A nodeAnswer is a line that testdata/parse.js prints for a question.
type nodeAnswer struct {
	Refused string // the error's name; "" if Node parses the frame

	// The type and the value of these members, "" if absent.
	ID, Method, Channel, TopChannel string

	Same bool
}

// askNode asks a Node process all questions, and returns its answers in the same order.
func askNode(t *testing.T, questions []string) []nodeAnswer {
	t.Helper()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("node is not in PATH: nothing to compare with")
	}
	cmd := exec.Command(node, "testdata/parse.js")
	cmd.Stdin = strings.NewReader(strings.Join(questions, "\n"))
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("node testdata/parse.js: %v; want no error", err)
	}
	var answers []nodeAnswer
	for line := range bytes.Lines(out) {
		var answer nodeAnswer
		if err := json.Unmarshal(line, &answer); err != nil {
			t.Fatalf("node answered %q: %v; want JSON", line, err)
		}
		answers = append(answers, answer)
	}
	if len(answers) != len(questions) {
		t.Fatalf("node answered %d questions; want %d answers", len(answers), len(questions))
	}
	return answers
}

func question(kind string, fields ...[]byte) string {
	for _, field := range fields {
		kind += "," + base64.StdEncoding.EncodeToString(field)
	}
	return kind
}

// TestPeekAgainstNode compares Peek with JavaScript. If Peek accepts a frame, then Node must parse
// it and read the same values. If Peek refuses a frame as invalid JSON, Node must refuse it, too.
func TestPeekAgainstNode(t *testing.T) {
	frames := differentialFrames(t)
	envelopes := make([]ahp.Envelope, len(frames))
	refusals := make([]error, len(frames))
	questions := make([]string, len(frames))
	for i, frame := range frames {
		e, err := ahp.Peek(frame)
		envelopes[i], refusals[i] = e, err
		questions[i] = question("frame", frame, e.Params, e.Result, e.Error)
	}
	accepted := 0
	for i, node := range askNode(t, questions) {
		if refusals[i] != nil {
			if isSyntax(refusals[i]) && node.Refused == "" {
				t.Errorf("Peek(%q) = %v, but Node parses it; want no error", frames[i], refusals[i])
			}
			continue
		}
		accepted++
		if err := compareNode(envelopes[i], node); err != nil {
			t.Errorf("Peek(%q): %v; want no error", frames[i], err)
		}
	}
	t.Logf("%d frames, %d of them accepted", len(frames), accepted)
	if accepted < len(frames)/10 || accepted > len(frames)*9/10 {
		t.Errorf("%d of %d frames accepted; want at least a tenth accepted and a tenth refused", accepted, len(frames))
	}
}

// isSyntax reports whether Peek refused a frame because it is no JSON.
func isSyntax(err error) bool {
	var refused *ahp.FrameError
	return errors.As(err, &refused) &&
		slices.Contains([]string{after, badByte, badEnd, badEscape, badControl, badUTF8}, refused.Reason)
}

// compareNode returns an error if Node reads a frame differently from Peek.
func compareNode(e ahp.Envelope, node nodeAnswer) error {
	if node.Refused != "" {
		return fmt.Errorf("accepted; Node: %s", node.Refused)
	}
	if want := showText(e.Method); node.Method != want {
		return fmt.Errorf("method %q; Node: %q", want, node.Method)
	}
	want := showText(e.Channel)
	if node.Channel != want && node.Channel != "" || node.TopChannel != want && node.TopChannel != "" {
		return fmt.Errorf("channel %q; Node: %q and %q", want, node.Channel, node.TopChannel)
	}
	if (want == "") != (node.Channel == "" && node.TopChannel == "") {
		return fmt.Errorf("channel %q; Node: %q and %q", want, node.Channel, node.TopChannel)
	}
	if !sameAsShown(e.ID, node.ID) {
		return fmt.Errorf("id %s; Node: %q", e.ID, node.ID)
	}
	if !node.Same {
		return fmt.Errorf("params %s, result %s, error %s; Node reads others", e.Params, e.Result, e.Error)
	}
	return nil
}

// showText returns a text in the form that parse.js prints, or "" for none.
func showText(text []byte) string {
	if text == nil {
		return ""
	}
	return "string " + string(text)
}

// sameAsShown reports whether parse.js has printed this raw id.
func sameAsShown(id []byte, shown string) bool {
	kind, value, _ := strings.Cut(shown, " ")
	switch kind {
	case "":
		return id == nil
	case "null":
		return string(id) == "null"
	case "string":
		text, ok := ahp.Text(id)
		return ok && text == value
	case "number":
		value = strings.Replace(value, "Infinity", "1e999", 1)
		return ahp.SameID(id, []byte(value))
	}
	return false
}

// differentialFrames returns real, odd, generated and mutated frames. They are the same in each
// run.
func differentialFrames(t *testing.T) [][]byte {
	frames := corpus(t)
	for _, test := range refusals {
		frames = append(frames, []byte(strings.Replace(test.in, "¶", "", 1)))
	}
	for seed := range 1000 {
		frames = append(frames, generated.Example(seed).text)
	}
	seeds := slices.Clone(frames)
	seeds = slices.DeleteFunc(seeds, func(frame []byte) bool {
		_, err := ahp.Peek(frame)
		return err != nil // mutations of it would only be refused, too
	})
	random := rand.New(rand.NewPCG(1, 2))
	for range 4000 {
		frame := seeds[random.IntN(len(seeds))]
		for range 1 + random.IntN(2) {
			frame = mutate(random, frame, seeds)
		}
		frames = append(frames, frame)
	}
	return frames
}

// pieces are texts that mutate inserts.
var pieces = []string{
	`"id":1,`, `"method":"x",`, `"channel":"ahp-root://",`, `"params":{},`, `,"result":1`, `"m\u0065thod":"y",`,
	"{", "}", "[", "]", `"`, `\`, ",", ":", "-", "0", "1", ".", "e9", "null", "true", " ", "\n", "\t", "\x00", "\xff",
	"\xc3\xa9", "\ufeff", "\u2028", `\ud83d`, `\ude00`, `\u0000`, `\/`, `__proto__`,
}

// mutate returns a copy of a frame with a random change.
func mutate(random *rand.Rand, frame []byte, seeds [][]byte) []byte {
	if len(frame) == 0 {
		return []byte(pieces[random.IntN(len(pieces))])
	}
	from := random.IntN(len(frame))
	to := min(len(frame), from+1+random.IntN(8))
	switch random.IntN(5) {
	case 0: // changes a bit
		frame = bytes.Clone(frame)
		frame[from] ^= 1 << random.IntN(8)
		return frame
	case 1: // removes a part
		return slices.Concat(frame[:from], frame[to:])
	case 2: // repeats a part
		return slices.Concat(frame[:to], frame[from:])
	case 3: // continues with a different frame
		other := seeds[random.IntN(len(seeds))]
		return slices.Concat(frame[:from], other[random.IntN(len(other)+1):])
	}
	// Mostly, the piece is inserted between tokens.
	if at := bytes.IndexAny(frame[from:], `,{[:`); at >= 0 && random.IntN(3) > 0 {
		from += at + 1
	}
	return slices.Concat(frame[:from], []byte(pieces[random.IntN(len(pieces))]), frame[from:])
}

// TestSameIDAgainstNode fails unless SameID agrees with JavaScript about each pair of ids.
func TestSameIDAgainstNode(t *testing.T) {
	ids := []string{
		`12345678901234567890`, `12345678901234567168`, `1e22`, `1e23`, `9.999999999999999e22`, `5e-324`, `2e-324`, `4.9e-324`,
		`1.7976931348623157e308`, `1.7976931348623159e308`, `0.1e1`, `-0.0e-5`, `"\ud83d\ude00"`, `"\uD83D\uDE00"`, `"😀"`,
		`"1"`, `"1.0"`, `"\u0000"`, `"\n"`, `"\u000a"`, `"\u000A"`, `"\/"`, `"/"`,
	}
	for _, pair := range append(sameIDs, otherIDs...) {
		ids = append(ids, pair[0], pair[1])
	}
	var questions []string
	var got []bool
	for _, a := range ids {
		for _, b := range ids {
			questions = append(questions, question("id", []byte(a), []byte(b)))
			got = append(got, ahp.SameID([]byte(a), []byte(b)))
		}
	}
	for i, node := range askNode(t, questions) {
		if node.Refused != "" || node.Same != got[i] {
			a, b := ids[i/len(ids)], ids[i%len(ids)]
			t.Errorf("SameID(%s, %s) = %v; Node: %v %s; want the same", a, b, got[i], node.Same, node.Refused)
		}
	}
}
