package testenv

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/devserver"
)

// Authority signs certificates for tests.
type Authority struct {
	File string // its own certificate, in PEM

	t    testing.TB
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	last int64 // serial number
}

// NewAuthority makes an authority that nobody knows yet.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{t: t, dir: t.TempDir()}
	a.key = a.newKey()
	template := a.template("authority")
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	der := a.sign(template, template, a.key)
	a.File = a.write("authority.pem", "CERTIFICATE", der)
	var err error
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return a
}

// Issue returns the files of a new certificate, for servers and clients, and of its key. Each host is a name or an
// address.
func (a *Authority) Issue(name string, hosts ...string) (cert, key string) {
	a.t.Helper()
	return a.IssueAs(name, nil, hosts...)
}

// IssueAs is Issue with a certificate that is changed before it is signed.
func (a *Authority) IssueAs(name string, change func(*x509.Certificate), hosts ...string) (cert, key string) {
	a.t.Helper()
	template := a.template(name)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	if change != nil {
		change(template)
	}
	own := a.newKey()
	der, err := x509.MarshalECPrivateKey(own)
	if err != nil {
		a.t.Fatal(err)
	}
	file := fmt.Sprintf("%s-%d", name, a.last)
	return a.write(file+".pem", "CERTIFICATE", a.sign(template, a.cert, own)),
		a.write(file+".key", "EC PRIVATE KEY", der)
}

func (a *Authority) newKey() *ecdsa.PrivateKey {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	return key
}

func (a *Authority) template(name string) *x509.Certificate {
	a.last++
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: big.NewInt(a.last), Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
	}
}

// sign signs a certificate for the owner of a key.
func (a *Authority) sign(template, parent *x509.Certificate, owner *ecdsa.PrivateKey) []byte {
	a.t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &owner.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return der
}

func (a *Authority) write(name, kind string, der []byte) string {
	a.t.Helper()
	path := filepath.Join(a.dir, name)
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return path
}

// RedisTLS returns the address on which a server is to speak TLS and the options for that: with the certificate of
// those files, and only with clients that have one of the authority. The tests go on to talk to it on its other port.
func (a *Authority) RedisTLS(cert, key string) (addr string, opts []devserver.RedisOption) {
	a.t.Helper()
	port, err := devserver.FreePort()
	if err != nil {
		a.t.Fatal(err)
	}
	return devserver.Address(port), []devserver.RedisOption{
		devserver.Directive("tls-port", strconv.Itoa(port)),
		devserver.Directive("tls-cert-file", cert),
		devserver.Directive("tls-key-file", key),
		devserver.Directive("tls-ca-cert-file", a.File),
		devserver.Directive("tls-auth-clients", "yes"),
	}
}
