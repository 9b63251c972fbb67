// Package testca makes this process trust a certificate for 127.0.0.1. Tests need it
// for programs that trust the system's authorities.
package testca

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Certificate returns the trusted certificate. Call it before anything reads the
// system's authorities, because Go reads them only once.
var Certificate = sync.OnceValues(func() (tls.Certificate, error) {
	certificate, err := create(net.IPv4(127, 0, 0, 1))
	if err != nil {
		return certificate, err
	}
	return certificate, trust(certificate)
})

// create makes a certificate for an address and for names.
func create(address net.IP, names ...string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		IPAddresses: []net.IP{address}, DNSNames: names,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// WriteFilesFor makes a certificate for an address and for names, and writes it and its
// key to files in a directory. This process does not trust the certificate.
func WriteFilesFor(address net.IP, dir string, names ...string) (certFile, keyFile string, err error) {
	certificate, err := create(address, names...)
	if err != nil {
		return "", "", err
	}
	return writeFiles(certificate, dir)
}

// trust makes Go read the certificate as one of the system's authorities.
func trust(certificate tls.Certificate) error {
	dir, err := os.MkdirTemp("", "testca-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	file, _, err := writeFiles(certificate, dir)
	if err != nil {
		return err
	}
	if err := os.Setenv("SSL_CERT_FILE", file); err != nil {
		return err
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		return err
	}
	leaf, err := x509.ParseCertificate(certificate.Certificate[0])
	if err != nil {
		return err
	}
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: pool}); err != nil {
		return errors.New("the system's authorities were in use before")
	}
	return nil
}

// WriteFiles writes the trusted certificate and its key to files in a directory.
func WriteFiles(dir string) (certFile, keyFile string, err error) {
	certificate, err := Certificate()
	if err != nil {
		return "", "", err
	}
	return writeFiles(certificate, dir)
}

func writeFiles(certificate tls.Certificate, dir string) (certFile, keyFile string, err error) {
	key, err := x509.MarshalPKCS8PrivateKey(certificate.PrivateKey)
	if err != nil {
		return "", "", err
	}
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	return certFile, keyFile, errors.Join(
		os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Certificate[0]}), 0o600),
		os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), 0o600),
	)
}
