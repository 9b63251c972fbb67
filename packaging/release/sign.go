package main

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"aead.dev/minisign"
)

// A signer signs with the project's ECDSA P-256 key, as cosign's sign-blob does with a
// key file: openssl and cosign both verify it. Signatures are deterministic (RFC 6979),
// so that two runs give equal bytes.
type signer struct{ key *ecdsa.PrivateKey }

// readSigner reads a key as openssl writes it, in SEC 1 or PKCS #8.
func readSigner(path string) (*signer, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if key, err := x509.ParseECPrivateKey(block.Bytes); err == nil && key.Curve == elliptic.P256() {
			return &signer{key}, nil
		}
		if key, err := x509.ParsePKCS8PrivateKey(block.Bytes); err == nil {
			if key, ok := key.(*ecdsa.PrivateKey); ok && key.Curve == elliptic.P256() {
				return &signer{key}, nil
			}
		}
	}
	return nil, fmt.Errorf("%s: want an ECDSA P-256 key in PEM, as from: openssl ecparam -name prime256v1 -genkey -noout", path)
}

// sign returns the signature of data, in DER.
func (s *signer) sign(data []byte) ([]byte, error) {
	sum := sha256.Sum256(data)
	return s.key.Sign(nil, sum[:], crypto.SHA256)
}

// publicPEM returns the public key, in PEM.
func (s *signer) publicPEM() (string, error) {
	der, err := x509.MarshalPKIXPublicKey(s.key.Public())
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))), nil
}

// sign writes name.sig, the signature of a file of the output, in base64.
func (r *release) sign(name string) error {
	data, err := os.ReadFile(filepath.Join(r.out, name))
	if err != nil {
		return err
	}
	signature, err := r.signer.sign(data)
	if err != nil {
		return err
	}
	return r.write(name+".sig", []byte(base64.StdEncoding.EncodeToString(signature)+"\n"))
}

// minisign writes name.minisig, the signature that people verify with minisign, and the
// public key.
func (r *release) minisign(keyFile, name string) error {
	text, err := os.ReadFile(keyFile)
	if err != nil {
		return err
	}
	var key minisign.PrivateKey
	if err := key.UnmarshalText(text); err != nil {
		return fmt.Errorf("%s: want an unencrypted minisign key, as from minisign -G -W: %w", keyFile, err)
	}
	data, err := os.ReadFile(filepath.Join(r.out, name))
	if err != nil {
		return err
	}
	public, err := key.Public().(minisign.PublicKey).MarshalText()
	if err != nil {
		return err
	}
	return errors.Join(
		r.write("minisign.pub", append(public, '\n')),
		r.write(name+".minisig", minisign.SignWithComments(key, data, "version:"+r.version, "commit:"+r.commit)),
	)
}

// provenance writes which commit and Go version the output so far was built from: an in-toto
// statement with SLSA's provenance (version 1), in a signed DSSE envelope.
func (r *release) provenance() error {
	sums, err := r.sums()
	if err != nil {
		return err
	}
	type digest map[string]string
	type subject struct {
		Name   string `json:"name"`
		Digest digest `json:"digest"`
	}
	var subjects []subject
	for _, name := range slices.Sorted(slices.Values(r.made)) {
		subjects = append(subjects, subject{name, digest{"sha256": sums[name]}})
	}
	source := "git+" + r.owner["SOURCE"]
	statement, err := json.Marshal(map[string]any{
		"_type": "https://in-toto.io/Statement/v1", "subject": subjects, "predicateType": "https://slsa.dev/provenance/v1",
		"predicate": map[string]any{
			"buildDefinition": map[string]any{
				"buildType":            r.owner["SOURCE"] + "/blob/main/RELEASING.md",
				"externalParameters":   map[string]string{"version": r.version},
				"internalParameters":   map[string]string{"go": runtime.Version()},
				"resolvedDependencies": []any{map[string]any{"uri": source, "digest": digest{"gitCommit": r.commit}}},
			},
			"runDetails": map[string]any{"builder": map[string]string{"id": source + "/packaging/release"}},
		},
	})
	if err != nil {
		return err
	}
	const kind = "application/vnd.in-toto+json"
	var signed bytes.Buffer // DSSE's pre-authentication encoding
	fmt.Fprintf(&signed, "DSSEv1 %d %s %d %s", len(kind), kind, len(statement), statement)
	signature, err := r.signer.sign(signed.Bytes())
	if err != nil {
		return err
	}
	envelope, err := json.Marshal(map[string]any{
		"payloadType": kind, "payload": statement, "signatures": []any{map[string]any{"sig": signature}},
	})
	if err != nil {
		return err
	}
	return r.write("provenance.intoto.jsonl", append(envelope, '\n'))
}
