package browser_test

import (
	"os"
	"testing"
	"strings"
	"time"

	"github.com/chromedp/chromedp"
)

func TestReal(t *testing.T) {
	url := os.Getenv("CONSOLE_URL")
	if url == "" { t.Skip("manual") }
	p := newPage(t)
	p.do(desktop(), chromedp.Navigate(url))
	p.wants("#status-text", "Live")
	p.click("#new-session")
	p.wants("#chat-note", "Nothing has been said yet.")
	p.say("hello")
	p.wants(lastTurn+" .parts", "Hello, world!")
	p.say("tool")
	p.wants(lastTurn+" .tool pre", "echoed")
	p.say("error")
	p.wants(lastTurn, "Something went wrong")
	p.say("permission")
	p.wants(lastTurn+" .question button.primary", "Allow")
	p.shot("real-permission")
	p.click(lastTurn + " .question button.primary")
	p.wants(lastTurn+" .parts", "Allowed.")
	p.say("permission")
	p.click(lastTurn + " .question button:not(.primary)")
	p.wants(lastTurn+" .parts", "Denied.")
	p.say("stream 200 30 20")
	p.click("#stop")
	p.wants(lastTurn, "Stopped.")
	p.say("stream 30 30 20")
	p.until("end", 20*time.Second, func() bool { return strings.Contains(p.text(lastTurn+" .parts"), "29 xx") && p.text(".turn.live") == "" })
	p.click(".about summary")
	p.shot("real")
	t.Log(p.text("#about"))
	t.Log(p.text("#sessions"))
	// reload keeps session and token
	p.do(chromedp.Reload())
	p.wants(lastTurn+" .parts", "29 xx")
	p.shot("real-reload")
	t.Log(p.text("#turns"))
}
