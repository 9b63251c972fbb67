package routing

import (
	"fmt"
	"strings"
)

// Dump returns a description of the queues, to print when a test fails.
func (a *AgentEnd) Dump() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var s strings.Builder
	fmt.Fprintf(&s, "host-agent: %d bodies to publish, after %d\n", a.publish.len(), a.left)
	for _, l := range a.links {
		t := &l.mux.batch
		fmt.Fprintf(&s, " link to %s: %d records, %d streams with a turn, %d answers; %d packets pin %d bytes; batch of %d streams, held %v, %d missing\n",
			l.relay, l.mux.control.len(), l.mux.turns.len(), l.answers.len(), l.packets.len(), l.pinned, len(t.streams), t.held(), t.missing)
		for number, c := range l.conns {
			fmt.Fprintf(&s, "  connection %d: %v, in the batch %v, received close %v\n", number, &c.stream, c.stream.node != nil, c.received)
		}
	}
	return s.String()
}

// Dump returns a description of the queues, to print when a test fails.
func (r *RelayEnd) Dump() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var s strings.Builder
	fmt.Fprintf(&s, "relay: %d records, %d streams with a turn, %d places for missing bodies\n", r.mux.control.len(), r.mux.turns.len(), r.awaited.count)
	for number, c := range r.conns {
		fmt.Fprintf(&s, "  connection %d: %v, pending %d, client there %v, received close %v\n", number, &c.stream, c.pending.len(), c.client != nil, c.received)
	}
	return s.String()
}

func (s *stream) String() string {
	return fmt.Sprintf("%d items, credit %d, has a turn %v, ended %v, %d of %d to be credited", s.items.len(), s.credit, s.ready, s.ended, s.creditDue, s.uncredited)
}
