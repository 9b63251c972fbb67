package routing

import (
	"testing"

	"ahprelay/broker/link"
)

// TestByteStreamGetsNoReferences refers to a body on a connection that carries a byte stream. No
// correct host-agent does that. The relay counts a stream's unread bytes in its memory budget, and
// references need no credit, so a few bytes could use up the budget. The stream must get nothing.
func TestByteStreamGetsNoReferences(t *testing.T) {
	kept := 0
	cfg := headed()
	cfg.Kept = func(n int) { kept += n }
	r := NewRelayEnd(cfg)
	r.Start(link.Hello{Credit: 1 << 20}, &still{})
	if _, err := r.OpenBytes(Open{ID: "s", Canvas: &Canvas{}}); err != nil {
		t.Fatal(err)
	}
	hears(r, 1, make([]byte, 1000))
	before := kept
	packet, _ := appendBodyList(appendRecord(nil, recordRefs, 1, 1), []uint64{1}, 1)
	var set connSet
	set.add(1)
	if _, err := r.Handle(1, set.append(packet)); err != nil || kept != before {
		t.Errorf("Handle = %v, and %d more bytes are kept; want no error, and none", err, kept-before)
	}
}
