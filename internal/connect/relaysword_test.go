package connect

import (
	"errors"
	"strings"
	"testing"

	"ahprelay/ahp"
)

// TestRelaysWordsAreNamed closes a sealed connection as a relay can: with each code, and a reason
// that looks like the host's. If the code is AHP's, the client must get it with "the relay: "
// before the reason. For any other code, it must get 1012 without that reason.
func TestRelaysWordsAreNamed(t *testing.T) {
	const forged = "removed by the host's owner"
	for code := ahp.CloseCode(1000); code < 5000; code++ {
		var closed *Closed
		if err := relaysWord(&Closed{code, forged}); !errors.As(err, &closed) {
			t.Fatalf("the relay's close code %d becomes %v; want a Closed", code, err)
		}
		switch {
		case code == closeLost: // the connection was lost without a close frame
		case code.Reason() == "" && (closed.Code != ahp.CloseResync || strings.Contains(closed.Reason, forged)):
			t.Errorf("the relay's close code %d, unknown in AHP, becomes %v; want CloseResync without its text", code, closed)
		case code.Reason() != "" && (closed.Code != code || closed.Reason != "the relay: "+forged):
			t.Errorf("the relay's close code %d becomes %v; want its code and the relay named", code, closed)
		}
	}
	if lost := errors.New("no line"); relaysWord(lost) != lost {
		t.Error("relaysWord changes an error without a close frame; want the same error")
	}
}
