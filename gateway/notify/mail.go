package notify

import (
	"context"
	"errors"
	"fmt"
	"net/mail"
	"net/url"
	"strconv"
	"strings"
	"time"

	gomail "github.com/wneessen/go-mail"

	"ahprelay/internal/fair"
)

// mailsInHour is the number of mails to a person at once, and then per hour.
const mailsInHour = 20

// A MailConfig configures the mail server.
type MailConfig struct {
	URL  string // smtp://user:password@host:587, with STARTTLS, or smtps://…:465
	From string
}

func (m *MailConfig) client() (*gomail.Client, error) {
	u, err := url.Parse(m.URL)
	if err != nil || u.Hostname() == "" || u.Scheme != "smtp" && u.Scheme != "smtps" {
		return nil, errors.New("want smtp://user@host:587 or smtps://user@host:465; put the password into the file of --notify-smtp-password-file")
	}
	opts := []gomail.Option{gomail.WithTimeout(sendTimeout), gomail.WithTLSPortPolicy(gomail.TLSMandatory)}
	switch {
	case u.Scheme == "smtps":
		opts = append(opts, gomail.WithSSLPort(false))
	case u.Query().Get("tls") == "no": // for a server on this machine
		opts = append(opts, gomail.WithTLSPortPolicy(gomail.NoTLS))
	}
	if u.Port() != "" {
		port, err := strconv.Atoi(u.Port())
		if err != nil {
			return nil, err
		}
		opts = append(opts, gomail.WithPort(port))
	}
	if password, ok := u.User.Password(); ok {
		opts = append(opts, gomail.WithSMTPAuth(gomail.SMTPAuthAutoDiscover), gomail.WithUsername(u.User.Username()), gomail.WithPassword(password))
	}
	return gomail.NewClient(u.Hostname(), opts...)
}

// Check returns an error if the configuration is invalid.
func (m *MailConfig) Check() error {
	if err := gomail.NewMsg().From(m.From); err != nil {
		return fmt.Errorf("--notify-mail-from: %w", err)
	}
	if _, err := m.client(); err != nil {
		return fmt.Errorf("--notify-smtp: %w", err)
	}
	return nil
}

// A mailer sends mail.
type mailer struct {
	cfg     *MailConfig // nil without a mail server
	allowed *fair.Buckets
}

func newMailer(cfg *MailConfig) *mailer {
	return &mailer{cfg, fair.NewBuckets(time.Hour/mailsInHour, mailsInHour)}
}

func (s *mailer) check(_ context.Context, t *Target) error {
	if s.cfg == nil {
		return errors.New("kind: this relay sends no mail (--notify-smtp)")
	}
	a, err := mail.ParseAddress(t.To)
	if err != nil || a.Address != t.To || len(t.To) > 254 {
		return errors.New("to: want a mail address")
	}
	return nil
}

// redact implements service. The target has no URL.
func (*mailer) redact(t *Target) { t.URL = "" }

func (s *mailer) send(ctx context.Context, job *Job, t *Target, m *Message) outcome {
	if s.cfg == nil || s.allowed.Take(personKey(job.Tenant, job.Subject)) > 0 {
		return outcome{result: Refused, why: "no mail server, or too many mails in an hour"}
	}
	client, err := s.cfg.client()
	msg := gomail.NewMsg()
	if err == nil {
		err = errors.Join(msg.From(s.cfg.From), msg.To(t.To))
	}
	if err != nil {
		return outcome{result: Refused, why: "the relay's mail settings are invalid"}
	}
	msg.Subject(m.Says)
	msg.SetBodyString(gomail.TypeTextPlain, strings.TrimSpace(m.Says+"\n\n"+m.body()+"\n\n"+m.URL)+"\n")
	if err := client.DialAndSendWithContext(ctx, msg); err != nil {
		if send, ok := errors.AsType[*gomail.SendError](err); ok && !send.IsTemp() && send.ErrorCode() >= 500 {
			return outcome{result: Refused, why: "the mail server refused the message"}
		}
		return outcome{result: Retry, why: "the mail server is unavailable"}
	}
	return outcome{result: Delivered}
}
