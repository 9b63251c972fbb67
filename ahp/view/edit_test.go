package view_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
)

// TestEditorChangesOnlyItsPlaces replaces and removes elements of an array. The other bytes, and
// the original message, must stay unchanged.
func TestEditorChangesOnlyItsPlaces(tb *testing.T) {
	rapid.Check(tb, func(t *rapid.T) {
		var message bytes.Buffer
		var places []view.Place
		var want []any
		keep := map[int]bool{}
		var e view.Editor
		n := rapid.IntRange(0, 6).Draw(t, "n")
		for i := range n {
			if i > 0 {
				message.WriteString(rapid.SampledFrom([]string{",", " ,\n"}).Draw(t, "comma"))
			}
			at := message.Len()
			message.WriteString(rapid.SampledFrom([]string{`{"a":[1]}`, "1", `"é"`}).Draw(t, "element"))
			places = append(places, view.Place{At: at, End: message.Len()})
			var v any
			_ = json.Unmarshal(message.Bytes()[at:], &v)
			if rapid.Bool().Draw(t, "replaced") {
				e.Replace(places[i], []byte(`"new"`))
				v = "new"
			}
			if keep[i] = rapid.Bool().Draw(t, "kept"); keep[i] {
				want = append(want, v)
			}
		}
		before := bytes.Clone(message.Bytes())
		e.Keep(places, func(i int) bool { return keep[i] })
		out := e.Apply(message.Bytes())
		var got []any
		if err := json.Unmarshal([]byte("["+string(out)+"]"), &got); err != nil {
			t.Fatalf("the edited message cannot be read: %v in %s", err, out)
		}
		if !cmp.Equal(got, append([]any{}, want...)) {
			t.Fatalf("%s became %s; want %v", before, out, want)
		}
		if !bytes.Equal(before, message.Bytes()) {
			t.Fatalf("Apply has changed its input %s to %s; want it as it was", before, message.Bytes())
		}
	})
}

// TestEditorWithoutEditsReturnsTheMessage fails unless Apply without edits returns the message
// itself, not a copy.
func TestEditorWithoutEditsReturnsTheMessage(t *testing.T) {
	message := []byte(`{"id":1}`)
	var e view.Editor
	if out := e.Apply(message); &out[0] != &message[0] || e.Changes() {
		t.Error("Apply without edits copies the message; want the same bytes")
	}
	m := [...]ahp.Member{{Name: "id"}}
	if err := ahp.Members(message, m[:]); err != nil {
		t.Fatal(err)
	}
	e.Replace(view.Place{At: m[0].Offset(), End: m[0].Offset() + 1}, []byte("22"))
	if out := e.Apply(message); string(out) != `{"id":22}` {
		t.Errorf("Apply returns %s; want {\"id\":22}", out)
	}
}
