package cli

import (
	"fmt"
	"io"
	"time"

	"ahprelay/auth/device"
)

// maxCodeColumns is the largest width of an approval link's QR code. A line shows two rows,
// so the code fits a terminal of 24 lines.
const maxCodeColumns = 45

// ShowCode prints how to approve a request, with a QR code if out is a terminal and noQR
// is false. The QR code contains the approval code, and the printed link does not. button
// is the label of the page's button that leads to the field for the code.
func ShowCode(out io.Writer, code device.Code, button string, noQR bool) {
	fmt.Fprintf(out, "On a signed-in device, open\n\n  %s\n\nand at \"%s\" type the code\n\n  %s\n\nThe page must show the fingerprint %s. The code is valid until %s.\n",
		Printable(code.Page), button, Printable(code.Code), code.Fingerprint, code.Expires.Local().Format(time.TimeOnly))
	if scan := code.Link + "=" + code.Code; !noQR && QRWidth(scan) <= maxCodeColumns {
		_ = PrintQR(out, out, scan) // without it, the printed code is enough
	}
}
