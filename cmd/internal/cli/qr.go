package cli

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
	"rsc.io/qr"
)

// PrintQR prints a QR code on out, if that is a terminal with enough room.
func PrintQR(out, errs io.Writer, text string) error {
	f, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return nil // no terminal, or its size is unknown
	}
	code, err := qr.Encode(text, qr.L)
	if err != nil {
		fmt.Fprintln(errs, "No QR code:", err)
		return nil
	}
	margin := marginIn(code, width)
	if margin == 0 {
		fmt.Fprintf(errs, "For a QR code, the terminal must be %d columns wide; it has %d.\n", code.Size+2*leastMargin, width)
		return nil
	}
	return writeQR(f, code, margin)
}

// marginIn returns the margin of a QR code on a terminal of so many columns, or 0 if
// there is no room.
func marginIn(code *qr.Code, columns int) int {
	for margin := qrMargin; margin >= leastMargin; margin-- {
		if code.Size+2*margin <= columns {
			return margin
		}
	}
	return 0
}

// QRWidth returns the columns of a text's QR code, 0 if there is none.
func QRWidth(text string) int {
	code, err := qr.Encode(text, qr.L)
	if err != nil {
		return 0
	}
	return code.Size + 2*qrMargin
}

// qrMargin is the white margin around a QR code, in modules. ISO/IEC 18004 asks for 4;
// readers accept less.
const (
	qrMargin    = 2
	leastMargin = 1 // where the terminal has no more columns
)

// writeQR writes two rows of modules in each line, in black on white for any terminal
// colours.
func writeQR(w io.Writer, code *qr.Code, margin int) error {
	var b strings.Builder
	for y := -margin; y < code.Size+margin; y += 2 {
		b.WriteString("\x1b[30;107m")
		for x := -margin; x < code.Size+margin; x++ {
			b.WriteString(halfBlock(code.Black(x, y), code.Black(x, y+1)))
		}
		b.WriteString("\x1b[0m\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// halfBlock returns the character for two modules, one above the other.
func halfBlock(upper, lower bool) string {
	switch {
	case upper && lower:
		return "█"
	case upper:
		return "▀"
	case lower:
		return "▄"
	}
	return " "
}
