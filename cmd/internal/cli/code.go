package cli

import (
	"fmt"
	"io"
	"time"

	"ahprelay/auth/device"
)

// maxCodeColumns is how wide the QR code of a link to a request may be: narrow terminals have room for it.
const maxCodeColumns = 40

// ShowCode says what somebody is to do, with a QR code if out is a terminal and it is wanted.
func ShowCode(out io.Writer, code device.Code, noQR bool) {
	fmt.Fprintf(out, "On a device that is signed in, open\n\n  %s\n\nand type the code\n\n  %s\n\nThe fingerprint there is to be %s. The code is good until %s.\n",
		code.Page, code.Code, code.Fingerprint, code.Expires.Local().Format(time.TimeOnly))
	if !noQR && QRWidth(code.Link) <= maxCodeColumns {
		_ = PrintQR(out, out, code.Link) // the code is enough
	}
}
