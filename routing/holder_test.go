package routing

import (
	"strings"
	"testing"

	"ahprelay/auth"
)

// TestEachHolderFitsIntoAMove encodes a move with the longest names that a token may contain, in
// characters that JSON escapes. The record must stay below the bound at which a host-agent ends the
// link.
func TestEachHolderFitsIntoAMove(t *testing.T) {
	for _, character := range []string{"<", `"`, "\u00e9"} {
		name := func(bytes int) string { return strings.Repeat(character, bytes/len(character)) }
		h := auth.Holder{Token: name(auth.MaxSubjectLen), Device: name(auth.MaxSubjectLen), Subject: name(auth.MaxSubjectLen)}
		for range auth.MaxOrigins {
			one := name(auth.MaxOriginsText / auth.MaxOrigins / 2)
			h.Origins = append(h.Origins, auth.Origin{ID: one, Subject: one, Issued: 1 << 40})
		}
		if n := len(appendMove(nil, 1, Move{Holder: h})); n > maxHolder {
			t.Errorf("the longest Move whose names consist of %s has %d bytes; want at most %d", character, n, maxHolder)
		}
	}
}
