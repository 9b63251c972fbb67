package main

import (
	"io"
	"strings"
	"testing"

	"ahprelay/hostagent"
)

// TestPrintedConfirmationIsAccepted runs the command line that a waiting device's text contains. The
// device's fingerprint begins with a hyphen.
func TestPrintedConfirmationIsAccepted(t *testing.T) {
	const fingerprint = "-mSsFKyX6k1vbwyZPduWfA"
	_, command, _ := strings.Cut(waits(hostagent.PairingRequest{Fingerprint: fingerprint}), "run host-agent ")
	var a app
	if _, err := a.program().Parse(strings.Fields(command), io.Discard, io.Discard); err != nil || a.Devices.Confirm != fingerprint {
		t.Errorf("%q: confirms %q, %v; want %s", command, a.Devices.Confirm, err, fingerprint)
	}
}
