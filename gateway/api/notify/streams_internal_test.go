package notify

import (
	"fmt"
	"testing"

	"ahprelay/auth"
)

// TestStreamsOfATenantLeaveRoomForOthers: the people of a tenant open as many event streams as the
// relay permits. A person of a second tenant still gets a stream. When all streams have ended, none is counted.
func TestStreamsOfATenantLeaveRoomForOthers(t *testing.T) {
	s := streams{of: map[[2]string]int{}}
	var leaves []func()
	for i := range streamsInAll {
		if leave, ok := s.enter(auth.Client{Tenant: "loud", Subject: fmt.Sprint(i / streamsOfSubject)}); ok {
			leaves = append(leaves, leave)
		}
	}
	if len(leaves) != streamsInAll/2 {
		t.Errorf("the loud tenant has %d streams; want %d", len(leaves), streamsInAll/2)
	}
	leave, ok := s.enter(auth.Client{Tenant: "quiet", Subject: "ada"})
	if !ok {
		t.Fatal("the stream of another tenant's person was refused; want room for it")
	}
	for _, leave := range append(leaves, leave) {
		leave()
	}
	if s.all != 0 || len(s.of) != 0 {
		t.Errorf("after their end, %d streams are counted, with %d names; want none", s.all, len(s.of))
	}
}
