# An image with the static binary and the unit, and no key.
#
#   deploy/docker/build.sh && packer build deploy/packer/aws.pkr.hcl

packer {
  required_plugins {
    amazon = {
      source  = "github.com/hashicorp/amazon"
      version = ">= 1.3.0"
    }
  }
}

variable "region" {
  type    = string
  default = "us-east-1"
}

variable "binary" {
  type    = string
  default = "target/x86_64-unknown-linux-gnu/image/evenfall"
}

source "amazon-ebs" "evenfall" {
  region        = var.region
  ami_name      = "evenfall-{{timestamp}}"
  instance_type = "t3.small"
  ssh_username  = "ec2-user"
  source_ami_filter {
    owners      = ["amazon"]
    most_recent = true
    filters = {
      name                = "al2023-ami-2023.*-x86_64"
      virtualization-type = "hvm"
    }
  }
}

build {
  sources = ["source.amazon-ebs.evenfall"]

  provisioner "file" {
    source      = var.binary
    destination = "/tmp/evenfall"
  }
  provisioner "file" {
    source      = "deploy/systemd"
    destination = "/tmp"
  }
  provisioner "shell" {
    inline = [
      "sudo install -m 755 /tmp/evenfall /usr/local/bin/evenfall",
      "sudo install -m 755 /tmp/systemd/evenfall-settings /usr/local/bin/evenfall-settings",
      "sudo install -m 644 /tmp/systemd/*.service /tmp/systemd/*.timer /etc/systemd/system/",
      "sudo install -m 644 /tmp/systemd/evenfall.sysusers /usr/lib/sysusers.d/evenfall.conf",
      "sudo install -m 644 /tmp/systemd/evenfall.sysctl /etc/sysctl.d/90-evenfall.conf",
      "sudo install -d -m 755 /etc/evenfall && sudo systemd-sysusers",
      "sudo systemctl enable evenfall-settings.timer",
    ]
  }
}
