package cli

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/creack/pty"
	"rsc.io/qr"

	"ahprelay/auth/device"
)

// TestCodeShowsEveryModule reads a drawn QR code back. It must have every module and
// the margin.
func TestCodeShowsEveryModule(t *testing.T) {
	code, err := qr.Encode("https://relay.example.com/#host=laptop&token=x", qr.L)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := writeQR(&out, code, qrMargin); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if want := (code.Size + 2*qrMargin + 1) / 2; len(lines) != want {
		t.Fatalf("%d lines; want %d", len(lines), want)
	}
	black := map[rune][2]bool{' ': {}, '▀': {true, false}, '▄': {false, true}, '█': {true, true}}
	for i, line := range lines {
		line = strings.TrimSuffix(strings.TrimPrefix(line, "\x1b[30;107m"), "\x1b[0m")
		for x, r := range []rune(line) {
			for half := range 2 {
				if want := code.Black(x-qrMargin, 2*i+half-qrMargin); black[r][half] != want {
					t.Fatalf("module %d, %d is black: %v; want %v", x-qrMargin, 2*i+half-qrMargin, !want, want)
				}
			}
		}
	}
}

// onTerminal returns what print writes to a terminal with so many columns.
func onTerminal(t *testing.T, columns uint16, print func(tty *os.File)) string {
	t.Helper()
	terminal, tty, err := pty.Open()
	if err != nil {
		t.Skip("no pseudo terminals here:", err)
	}
	if err := pty.Setsize(tty, &pty.Winsize{Cols: columns, Rows: 60}); err != nil {
		t.Fatal(err)
	}
	read := make(chan string, 1)
	go func() {
		var all bytes.Buffer
		_, _ = all.ReadFrom(terminal) // returns an error when tty is closed
		read <- all.String()
	}()
	print(tty)
	_ = tty.Close()
	got := <-read
	_ = terminal.Close()
	return strings.ReplaceAll(got, "\r\n", "\n")
}

// TestQRCodeOnTerminals prints a QR code on terminals with different numbers of
// columns. The code appears only if there is room for it.
func TestQRCodeOnTerminals(t *testing.T) {
	for _, test := range []struct {
		columns uint16
		want    bool
	}{{200, true}, {40, false}} {
		var said bytes.Buffer
		got := onTerminal(t, test.columns, func(tty *os.File) {
			if err := PrintQR(tty, &said, "https://relay.example.com/#host=laptop&session=mock%3A%2F1&token="+strings.Repeat("x", 450)); err != nil {
				t.Error(err)
			}
		})
		if strings.Contains(got, "█") != test.want {
			t.Errorf("with %d columns, the printed text is %q; want a QR code only if it fits", test.columns, got)
		}
		if !test.want && !strings.Contains(said.String(), "columns wide") {
			t.Errorf("with %d columns, the text is %q; want the needed number of columns", test.columns, said.String())
		}
	}
}

// TestQRCodeHoldsTheTypedCode prints a request to join a relay with a long name, on a terminal with
// 80 columns and 24 lines. The QR code must hold the link and the code; the printed link, which
// people may send to each other, must not hold the code.
func TestQRCodeHoldsTheTypedCode(t *testing.T) {
	const page = "https://relay-for-agents.development.example.com:8443/device"
	code := device.Code{Code: "BCDF-GHJK", Page: page, Link: page + "#0123456789abcdef", Fingerprint: "SHA256:x"}
	got := onTerminal(t, 80, func(tty *os.File) { ShowCode(tty, code, "Add a host", false) })
	want, err := qr.Encode(code.Link+"=BCDF-GHJK", qr.L)
	if err != nil {
		t.Fatal(err)
	}
	var drawn strings.Builder
	if err := writeQR(&drawn, want, qrMargin); err != nil {
		t.Fatal(err)
	}
	said, has := strings.CutSuffix(got, drawn.String())
	if lines := strings.Count(drawn.String(), "\n"); !has || lines > 23 || strings.Contains(said, "=BCDF") || !strings.Contains(said, "BCDF-GHJK") {
		t.Errorf("the output is the text %q and the expected QR code: %v, with %d lines; want the code BCDF-GHJK, and at most 23 lines", said, has, lines)
	}
	if !strings.Contains(said, `"Add a host"`) {
		t.Errorf("the text is %q; want the name of the page's button that leads to the field for the code", said)
	}
}

// TestCodeOfARelayIsPlainText shows a request whose texts come from a relay. They must not erase or replace what this program
// prints, such as the fingerprint that people compare.
func TestCodeOfARelayIsPlainText(t *testing.T) {
	var out bytes.Buffer
	ShowCode(&out, device.Code{Code: "AB\x1b[2KCD", Page: "https://relay.example.com/\x1b]0;x\adevice", Fingerprint: "aaaa-bbbb"}, "Add a host", true)
	if text := out.String(); strings.ContainsAny(text, "\x1b\a") || !strings.Contains(text, "aaaa-bbbb") {
		t.Errorf("the request is shown as %q; want no control characters", text)
	}
}
