package connect

import (
	"errors"
	"strings"
	"testing"

	"ahprelay/ahp"
)

// TestRelaysWordsAreNamed closes a sealed connection with each code as a relay can, and with
// reasons that look like the host's. None of them ends the conversation like the host's own
// 1000, or is an unnamed reason.
func TestRelaysWordsAreNamed(t *testing.T) {
	const forged = "removed by the host's owner"
	for code := ahp.CloseCode(1000); code < 5000; code++ {
		var closed *Closed
		if err := relaysWord(&Closed{code, forged}); !errors.As(err, &closed) {
			t.Fatalf("code %d: %v", code, err)
		}
		switch {
		case code == closeLost: // no close frame has come
		case code.Reason() == "" && (closed.Code != ahp.CloseResync || strings.Contains(closed.Reason, forged)):
			t.Errorf("code %d, which is not AHP's, becomes %v", code, closed)
		case code.Reason() != "" && (closed.Code != code || closed.Reason != "the relay: "+forged):
			t.Errorf("code %d becomes %v", code, closed)
		}
	}
	if lost := errors.New("no line"); relaysWord(lost) != lost {
		t.Error("the loss of the line has become a word of the relay")
	}
}
