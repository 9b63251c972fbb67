package cli

import (
	"fmt"
	"io"
	"time"

	"ahprelay/auth/device"
)

// maxCodeColumns is the width for QR codes of approval links: with half as many lines, such a code
// fits a terminal of 24 lines.
const maxCodeColumns = 45

// ShowCode prints how to approve a request, with a QR code if out is a terminal and
// noQR is false. The QR code contains the code, which the printed link does not: only
// someone who sees this terminal can scan it.
func ShowCode(out io.Writer, code device.Code, noQR bool) {
	fmt.Fprintf(out, "On a signed-in device, open\n\n  %s\n\nand type the code\n\n  %s\n\nThe page must show the fingerprint %s. The code is valid until %s.\n",
		code.Page, code.Code, code.Fingerprint, code.Expires.Local().Format(time.TimeOnly))
	if scan := code.Link + "=" + code.Code; !noQR && QRWidth(scan) <= maxCodeColumns {
		_ = PrintQR(out, out, scan) // the code is enough
	}
}
