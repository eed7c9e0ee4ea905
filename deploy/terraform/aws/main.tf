# A pool of agents on AWS: one network, one cluster placement group, one machine per entry, from the
# image that deploy/packer/aws.pkr.hcl makes.
#
#   evenfall plan deploy FILE --out DIR
#   terraform apply -var-file=DIR/terraform.tfvars.json -var=settings_dir=DIR

terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.0"
    }
  }
}

provider "aws" {
  region = var.region
}

resource "aws_vpc" "pool" {
  cidr_block = var.subnet
  tags       = { Name = var.name }
}

resource "aws_subnet" "pool" {
  vpc_id                  = aws_vpc.pool.id
  cidr_block              = var.subnet
  availability_zone       = var.zone
  map_public_ip_on_launch = true
}

resource "aws_internet_gateway" "pool" {
  vpc_id = aws_vpc.pool.id
}

resource "aws_route_table" "pool" {
  vpc_id = aws_vpc.pool.id
  route {
    cidr_block = "0.0.0.0/0"
    gateway_id = aws_internet_gateway.pool.id
  }
}

resource "aws_route_table_association" "pool" {
  subnet_id      = aws_subnet.pool.id
  route_table_id = aws_route_table.pool.id
}

# Feed 9000/udp, agents 9400/tcp and udp, health and metrics 9100 and 9101/tcp.
resource "aws_security_group" "pool" {
  name   = var.name
  vpc_id = aws_vpc.pool.id
  dynamic "ingress" {
    for_each = [["udp", 9000, 9000], ["udp", 9400, 9400], ["tcp", 9100, 9101], ["tcp", 9400, 9400]]
    content {
      protocol    = ingress.value[0]
      from_port   = ingress.value[1]
      to_port     = ingress.value[2]
      cidr_blocks = concat([var.subnet], var.admin_ranges)
    }
  }
  egress {
    protocol    = "-1"
    from_port   = 0
    to_port     = 0
    cidr_blocks = ["0.0.0.0/0"]
  }
}

resource "aws_iam_role" "pool" {
  name = "${var.name}-pool"
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = "ec2.amazonaws.com" }
    }]
  })
}

resource "aws_iam_role_policy" "key" {
  role = aws_iam_role.pool.id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect   = "Allow"
      Action   = "ssm:GetParameter"
      Resource = "arn:aws:ssm:${var.region}:*:parameter${var.key_parameter}"
    }]
  })
}

resource "aws_iam_instance_profile" "pool" {
  name = "${var.name}-pool"
  role = aws_iam_role.pool.name
}

resource "aws_placement_group" "pool" {
  name     = var.name
  strategy = "cluster"
}

resource "aws_instance" "agent" {
  for_each = { for machine in var.machines : machine.name => machine }

  ami                    = var.image
  instance_type          = var.machine_type
  subnet_id              = aws_subnet.pool.id
  private_ip             = each.value.address
  vpc_security_group_ids = [aws_security_group.pool.id]
  iam_instance_profile   = aws_iam_instance_profile.pool.name
  placement_group        = startswith(var.machine_type, "t") ? null : aws_placement_group.pool.name
  tags                   = { Name = each.key }
  depends_on             = [aws_iam_role_policy.key, aws_route_table_association.pool]
  # Settings come with the machine (16 KiB at most, so pools of some hundred); the key from the parameter, at boot, and never into an image.
  user_data_base64 = base64gzip(<<-END
    #!/bin/bash
    set -euo pipefail
    install -d -m 755 /etc/evenfall
    base64 -d >/etc/evenfall/agents.toml <<<${filebase64("${var.settings_dir}/agents.toml")}
    base64 -d >/etc/evenfall/feed.toml <<<${filebase64("${var.settings_dir}/feed.toml")}
    base64 -d >/etc/evenfall/plan.toml <<<${filebase64("${var.settings_dir}/plan.toml")}
    umask 077
    # The right to read it may arrive later than the machine.
    until aws ssm get-parameter --region ${var.region} --name ${var.key_parameter} --with-decryption \
      --query Parameter.Value --output text >/etc/evenfall/evenfall.key; do
      sleep 5
    done
    systemctl enable --now evenfall@agent:${each.key}
    ${each.value.index == 0 ? "systemctl enable --now --no-block evenfall-plan" : ""}
    ${var.start_feed ? "systemctl enable --now evenfall@${each.value.feed_role}:${each.value.feed_name}" : ""}
  END
  )
}

output "agents" {
  value = [for machine in var.machines : "${machine.address}:9400"]
}
